"""The verbs of ``tune``. Importing this package costs nothing: each rank of a fork server imports it again."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``tune`` script; ends the process with the verb's exit code."""
    import sys

    from tuner.cli.app import run_app

    sys.exit(run_app(sys.argv[1:]))
