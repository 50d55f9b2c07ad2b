"""``python -m tuner``: the same as ``tune``, whatever else is called ``tune`` on PATH."""

from __future__ import annotations

from tuner.cli import main

if __name__ == "__main__":
    main()
