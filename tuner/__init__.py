"""tune: finds the training configuration that reaches a target loss soonest. Importing it loads nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    __version__: str
    SEARCH_SPACES: Path
    """Folder of the ready-made search spaces: beside the packages in a checkout, inside the package when installed."""

DISTRIBUTION = "tune-layouts"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "SEARCH_SPACES":
        return _search_spaces()
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+not.installed"


def _search_spaces() -> Path:
    from pathlib import Path

    package = Path(__file__).resolve().parent
    installed = package / "_search_spaces"
    return installed if installed.is_dir() else package.parent / "search_spaces"
