"""Run one trial and watch it: metrics, limits, failures."""
