"""tune doctor: what on this machine would make trials fail. Each check is a function of its own; nothing is printed.

No library is imported to learn its version: the installed metadata tells, in milliseconds.
"""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Callable, Sequence

import humanize

import tuner
from tuner.cli import distributions, system_checks
from tuner.cli.accelerators import Accelerators, look
from tuner.cli.finding import Finding, Level, fine

__all__ = ["CHECKS", "Finding", "Level", "diagnose"]

PYTHON_FLOOR = (3, 11)
SQLITE_FLOOR = (3, 31, 0)
"""MLflow's store uses computed columns [mlflow/store/db/utils.py]."""


def diagnose() -> tuple[Finding, ...]:
    """Every check, in the order a person would ask. A check that breaks is itself a finding."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except Exception as error:
            findings.append(
                Finding(
                    level=Level.WARN,
                    what=check.__name__.replace("_", " "),
                    evidence=f"the check itself failed: {type(error).__name__}: {error}",
                    next_step="report this as a bug of tune doctor",
                )
            )
    return tuple(findings)


# -- Python and libraries ------------------------------------------------------------------------
def python_version() -> Sequence[Finding]:
    seen = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] >= PYTHON_FLOOR:
        return [fine("python", seen)]
    floor = ".".join(map(str, PYTHON_FLOOR))
    return [
        Finding(
            level=Level.FAULT,
            what="python",
            evidence=f"{seen}, older than {floor}",
            next_step=f"make an environment with Python {floor} or newer and install tune there",
        )
    ]


def library_versions() -> Sequence[Finding]:
    """What is installed against what the extras ask for: older or another major version is a fault, newer a warning."""
    findings = []
    for need in distributions.needs(tuner.DISTRIBUTION):
        extra = f"{tuner.DISTRIBUTION}[{need.extra}]"
        if need.installed is None:
            findings.append(fine(need.name, f"not installed; the extra {need.extra} brings {need.name}{need.wanted}"))
        elif need.is_met:
            findings.append(fine(need.name, f"{need.installed} ({need.wanted} wanted)"))
        else:
            findings.append(
                Finding(
                    level=Level.WARN if need.is_close else Level.FAULT,
                    what=need.name,
                    evidence=f"{need.installed} is installed, {extra} is made for {need.name}{need.wanted}",
                    next_step=f"pip install '{need.name}{need.wanted}'",
                )
            )
    return findings


def library_conflicts() -> Sequence[Finding]:
    """Requirements of installed libraries that other installed libraries do not meet, as ``pip check`` finds them."""
    conflicts = distributions.conflicts(distributions.WATCHED)
    if not conflicts:
        return [fine("versions fit together", "every requirement of the libraries tune uses is met")]
    return [
        Finding(
            level=Level.FAULT,
            what=f"{c.name} {c.version}",
            evidence=f"requires {c.requirement}, but {c.found}",
            next_step=f"pip install '{c.requirement}', or another {c.name}",
        )
        for c in conflicts
    ]


def sqlite_version() -> Sequence[Finding]:
    seen = sqlite3.sqlite_version
    if tuple(int(part) for part in seen.split(".")[:3]) >= SQLITE_FLOOR:
        return [fine("sqlite", seen)]
    return [
        Finding(
            level=Level.FAULT,
            what="sqlite",
            evidence=f"{seen}, older than {'.'.join(map(str, SQLITE_FLOOR))}: MLflow's store needs a newer one",
            next_step="use a Python built with a newer sqlite, or point tracking.mlflow at a server",
        )
    ]


# -- devices -------------------------------------------------------------------------------------
def devices() -> Sequence[Finding]:
    return device_findings(look())


def device_findings(seen: Accelerators) -> list[Finding]:
    """Driver, CUDA build and NCCL together, and whether the devices are alike."""
    if not seen.names:
        build = f"; torch is built for CUDA {seen.torch_cuda}" if seen.torch_cuda else ""
        return [fine("devices", f"{seen.note}; trials run on the CPU{build}")]
    findings = [_driver(seen), _nccl(seen)]
    kinds = sorted(set(zip(seen.names, seen.memory_bytes, strict=True)))
    told = ", ".join(
        f"{sum(k == kind for k in zip(seen.names, seen.memory_bytes, strict=True))} x {kind[0]} "
        f"{humanize.naturalsize(kind[1], binary=True)}"
        for kind in kinds
    )
    if len(kinds) == 1:
        return [*findings, fine("devices", told)]
    unequal = Finding(
        level=Level.FAULT,
        what="unequal devices",
        evidence=f"{told}: the slowest and the smallest would decide for all, and no prediction holds",
        next_step="set CUDA_VISIBLE_DEVICES to devices of one kind",
    )
    return [*findings, unequal]


def _driver(seen: Accelerators) -> Finding:
    told = f"driver {seen.driver}, which serves CUDA {seen.driver_cuda}"
    if seen.torch_cuda is None:
        if seen.torch is None:
            return fine("CUDA driver", f"{told}; torch is not installed")
        return Finding(
            level=Level.WARN,
            what="CUDA driver",
            evidence=f"{told}, but torch {seen.torch} is a build without CUDA: the devices would stay unused",
            next_step="install torch's CUDA build of the same version",
        )
    if _major(seen.driver_cuda) < _major(seen.torch_cuda):
        return Finding(
            level=Level.FAULT,
            what="CUDA driver",
            evidence=f"{told}; torch {seen.torch} is built for CUDA {seen.torch_cuda}",
            next_step=f"update the driver, or install torch built for CUDA {_major(seen.driver_cuda)}",
        )
    return fine("CUDA driver", f"{told}; torch {seen.torch} is built for CUDA {seen.torch_cuda}")


def _nccl(seen: Accelerators) -> Finding:
    if seen.torch_cuda is None:
        return fine("NCCL", "not used: torch has no CUDA")
    told = ", ".join(f"{name} {version}" for name, version in seen.nccl) or "none installed"
    fitting = [name for name, _ in seen.nccl if name.endswith(f"cu{_major(seen.torch_cuda)}")]
    if len(seen.nccl) == 1 and fitting:
        return fine("NCCL", told)
    return Finding(
        level=Level.WARN if fitting or not seen.nccl else Level.FAULT,
        what="NCCL",
        evidence=f"{told}; torch {seen.torch} is built for CUDA {seen.torch_cuda}",
        next_step=f"keep one: nvidia-nccl-cu{_major(seen.torch_cuda)}, in the version that torch requires",
    )


def _major(version: str | None) -> int:
    return int((version or "0").partition(".")[0])


CHECKS: tuple[Callable[[], Sequence[Finding]], ...] = (
    python_version,
    library_versions,
    library_conflicts,
    sqlite_version,
    devices,
    system_checks.shared_memory,
    system_checks.first_tune_on_path,
    system_checks.working_directory,
    system_checks.extension_locks,
    system_checks.search_spaces,
)
