"""What is installed and what it requires of what else is, from the metadata on disk; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

WATCHED = ("torch", "deepspeed", "ray", "optuna", "mlflow", "pydantic", "numpy", "plotly", "scipy", "nvidia-ml-py")
"""The libraries whose requirements are followed, with everything these require in turn."""
_REPORTED = ("torch", "deepspeed", "ray", "mlflow", "optuna", "nvidia-ml-py")
_ONE_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One library that an extra of tune brings."""

    name: str
    wanted: str
    extra: str
    installed: str | None

    @property
    def is_met(self) -> bool:
        return self.installed is not None and _admits(Requirement(f"{self.name}{self.wanted}"), self.installed)

    @property
    def is_close(self) -> bool:
        """Not what is wanted, but newer and of the same major version."""
        if self.installed is None:
            return False
        lowest = min(Version(s.version) for s in Requirement(f"{self.name}{self.wanted}").specifier)
        seen = Version(self.installed)
        return seen.major == lowest.major and seen >= lowest


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    name: str
    version: str
    requirement: str
    found: str


def installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def needs(distribution: str) -> tuple[Need, ...]:
    """The reported libraries among the extras of ``distribution``, each under the smallest extra that brings it.

    None where ``distribution`` is not installed itself: run from a bare checkout, say.
    """
    extras: dict[str, dict[str, str]] = {}
    for text in _requirements(distribution):
        requirement = Requirement(text)
        extra = _ONE_EXTRA.search(str(requirement.marker))
        if extra is not None:
            extras.setdefault(extra[1], {})[canonicalize_name(requirement.name)] = str(requirement.specifier)
    found = {}
    for extra_name, brings in sorted(extras.items(), key=lambda item: -len(item[1])):
        for name in set(_REPORTED) & set(brings):
            found[name] = Need(name=name, wanted=brings[name], extra=extra_name, installed=installed_version(name))
    return tuple(found[name] for name in _REPORTED if name in found)


def conflicts(names: Iterable[str]) -> tuple[Conflict, ...]:
    """Unmet requirements of ``names`` and of what they require, where installed. Extras of others are left out."""
    waiting, seen, unmet = [canonicalize_name(n) for n in names], set[str](), list[Conflict]()
    version_of = cache(installed_version)
    while waiting:
        name = waiting.pop()
        own = version_of(name)
        if name in seen or own is None:
            continue
        seen.add(name)
        for requirement in _applying(name):
            wanted = canonicalize_name(requirement.name)
            found = version_of(wanted)
            if found is None or not _admits(requirement, found):
                said = f"{wanted} is not installed" if found is None else f"{wanted} {found} is installed"
                shown = f"{requirement.name}{requirement.specifier}"
                unmet.append(Conflict(name=name, version=own, requirement=shown, found=said))
            waiting.append(wanted)
    return tuple(sorted(unmet, key=lambda c: (c.name, c.requirement)))


def _applying(name: str) -> Iterator[Requirement]:
    environment: dict[str, str] = {key: str(value) for key, value in default_environment().items()} | {"extra": ""}
    for text in _requirements(name):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _admits(requirement: Requirement, found: str) -> bool:
    """A version that is not PEP 440 cannot be judged and passes."""
    try:
        return requirement.specifier.contains(Version(found), prereleases=True)
    except InvalidVersion:
        return True
