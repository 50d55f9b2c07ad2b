"""From a launch to running processes."""
