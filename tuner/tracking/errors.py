"""What can go wrong with a study's files and its tracking; each message says what to do next."""

from __future__ import annotations


class StudyNotFound(Exception):
    """No study where one was asked for; the message lists those that exist."""


class StudyLocked(Exception):
    """Another process drives the study."""


class DamagedRecord(ValueError):
    """A file of a study says something this version cannot read."""


class MissingExtra(Exception):
    """A package of an optional extra is needed and absent."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install the extra [{extra}]: pip install '.[{extra}]' in the checkout"
        )
        self.package = package
        self.extra = extra
