"""RunDirectory: the folder that is a study's memory, which resume and report read.

``space.yaml`` as run, ``study.json``, ``mlflow.json``, ``trials.jsonl`` (the record: one finished trial a line),
``trials/NNNN/``, ``funnel.json``, ``outcome.json``, ``coefficients.json``, ``study.journal`` (the sampler's),
``report.html``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from tuner.outcome import Outcome
from tuner.plan.plan import Funnel
from tuner.records import SCHEMA_VERSION, TrialResult, TrialSpec
from tuner.tracking import strict_json
from tuner.tracking.errors import DamagedRecord, StudyNotFound
from tuner.tracking.files import append_line, write_atomically
from tuner.tracking.lock import sole_driver
from tuner.tracking.study_record import StudyRecord, TrackedAt

DEFAULT_OUT = Path("tune-runs")
DISTRIBUTION = "tune-layouts"

T = TypeVar("T", StudyRecord, TrackedAt, TrialSpec, Outcome)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunDirectory:
    path: Path
    """Absolute."""
    problems: list[str] = field(default_factory=list)
    """Lines of the record that could not be read, as of the last ``results()``."""

    # -- birth and finding -----------------------------------------------------------------------
    @classmethod
    def create(cls, name: str, out: Path | None, space_text: str) -> RunDirectory:
        """A new folder ``out/<name>``, or ``<name>-2``, ``-3``, ... where that is taken; nothing is overwritten."""
        base = (out or DEFAULT_OUT).absolute()
        base.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "study"
        path, number = base / stem, 1
        while True:
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
                path = base / f"{stem}-{number}"
        study = cls(path)
        study.trials_path.mkdir()
        write_atomically(path / "space.yaml", space_text)
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        study.write_study(StudyRecord(name=path.name, created=created, tune_version=tune_version()))
        return study

    @classmethod
    def open(cls, reference: str | Path | None = None, *, out: Path | None = None) -> RunDirectory:
        """The study at a path, of a name under ``out`` (``./tune-runs``), or the newest there.

        A path to a folder of studies means the newest in it. StudyNotFound says what was looked for and what exists.
        """
        base = (out or DEFAULT_OUT).absolute()
        tried = [base] if reference is None else [Path(reference).expanduser().absolute(), base / reference]
        for place in dict.fromkeys(tried):
            if place.name == "study.json" and place.is_file():
                return cls(place.parent)
            if _is_study(place):
                return cls(place)
            if inside := studies(place):
                return cls(inside[0])
        raise StudyNotFound(_not_found(reference, tried, base))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def trials_path(self) -> Path:
        return self.path / "trials"

    @property
    def record_path(self) -> Path:
        return self.path / "trials.jsonl"

    @property
    def journal_path(self) -> Path:
        return self.path / "study.journal"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def space_path(self) -> Path:
        return self.path / "space.yaml"

    @property
    def space_text(self) -> str:
        return self.space_path.read_text(encoding="utf-8")

    def lock(self) -> AbstractContextManager[None]:
        """Held by whoever drives the study; StudyLocked for a second one."""
        return sole_driver(self.path / "study.lock", self.name)

    # -- study.json ------------------------------------------------------------------------------
    def read_study(self) -> StudyRecord:
        return _read(self.path / "study.json", StudyRecord)

    def write_study(self, record: StudyRecord) -> None:
        write_atomically(self.path / "study.json", strict_json.dumps(record.to_dict(), indent=1) + "\n")

    def update_study(self, **changes: Any) -> StudyRecord:
        record = replace(self.read_study(), **changes)
        self.write_study(record)
        return record

    def write_tracked(self, tracked: TrackedAt) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "mlflow.json", strict_json.dumps(tracked.to_dict(), indent=1) + "\n")

    def read_tracked(self) -> TrackedAt | None:
        """Where the study is tracked; None before it is."""
        path = self.path / "mlflow.json"
        return _read(path, TrackedAt) if path.exists() else None

    # -- trials ----------------------------------------------------------------------------------
    def trial_dir(self, trial_id: int) -> Path:
        path = self.trials_path / f"{trial_id:04d}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write_spec(self, spec: TrialSpec) -> None:
        """Before anything starts, so that a trial cut off by a crash is known to have been tried."""
        write_atomically(self.trial_dir(spec.id) / "spec.json", strict_json.dumps(spec.to_dict(), indent=1) + "\n")

    def read_specs(self) -> tuple[TrialSpec, ...]:
        """Every trial that was ever begun, by id."""
        specs = [_read(path, TrialSpec) for path in self.trials_path.glob("*/spec.json")]
        return tuple(sorted(specs, key=lambda spec: spec.id))

    def append_result(self, result: TrialResult) -> None:
        """One line of the record, on disk when this returns."""
        text = strict_json.dumps(result.to_dict())
        write_atomically(self.trial_dir(result.spec.id) / "result.json", text + "\n")
        append_line(self.record_path, text)

    def results(self) -> tuple[TrialResult, ...]:
        """The finished trials in the order they ended; of two lines for one trial the later counts.

        A line that a crash tore is left out and told in ``problems``. DamagedRecord where a whole line does not say
        what this version can read.
        """
        self.problems = []
        if not self.record_path.exists():
            return ()
        found: dict[int, TrialResult] = {}
        for number, line in enumerate(self.record_path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            where = f"{self.record_path}:{number}"
            try:
                values = strict_json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                self._report(
                    f"{where}: a line cut off by a crash was left out ({len(line)} bytes, {error}); "
                    "its trial counts as interrupted"
                )
                continue
            result = _typed_result(values, where)
            found[result.spec.id] = result
        return tuple(found.values())

    def interrupted(self) -> tuple[TrialSpec, ...]:
        """Trials with a spec and no line in the record: begun, and cut off."""
        finished = {result.spec.id for result in self.results()}
        return tuple(spec for spec in self.read_specs() if spec.id not in finished)

    def _report(self, problem: str) -> None:
        self.problems.append(problem)
        logger.warning(problem)

    # -- what the study computed -----------------------------------------------------------------
    def write_funnel(self, funnel: Funnel) -> None:
        write_atomically(self.path / "funnel.json", strict_json.dumps(asdict(funnel), indent=1) + "\n")

    def read_funnel(self) -> Funnel | None:
        path = self.path / "funnel.json"
        return Funnel(**strict_json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def write_outcome(self, outcome: Outcome) -> None:
        write_atomically(self.path / "outcome.json", strict_json.dumps(outcome.to_dict(), indent=1) + "\n")

    def read_outcome(self) -> Outcome | None:
        path = self.path / "outcome.json"
        return _read(path, Outcome) if path.exists() else None

    def write_coefficients(self, coefficients: Mapping[str, Any]) -> None:
        write_atomically(self.path / "coefficients.json", strict_json.dumps(coefficients, indent=1) + "\n")

    def read_coefficients(self) -> dict[str, Any] | None:
        path = self.path / "coefficients.json"
        return dict(strict_json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def studies(base: Path) -> list[Path]:
    """The studies in a folder, newest first."""
    if not base.is_dir():
        return []
    found = [path for path in base.iterdir() if _is_study(path)]
    return sorted(found, key=lambda path: (_created(path), path.stat().st_mtime), reverse=True)


def tune_version() -> str:
    """Of the installed distribution; ``unknown`` in a bare checkout."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def _is_study(path: Path) -> bool:
    return (path / "study.json").is_file()


def _created(path: Path) -> str:
    try:
        return RunDirectory(path).read_study().created
    except DamagedRecord:
        return ""


def _not_found(reference: str | Path | None, tried: Sequence[Path], base: Path) -> str:
    asked = "no study yet" if reference is None else f"no study {str(reference)!r}"
    known = [path.name for path in studies(base)]
    exists = (
        f"{base} holds: {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}"
        if known
        else f"there is no study in {base}"
    )
    places = " and ".join(str(path) for path in dict.fromkeys(tried))
    return (
        f"{asked}; looked in {places}; {exists}. "
        "Name one of them, give the path of its folder, or start one with `tune run SPACE.yaml`"
    )


def _read(path: Path, kind: type[T]) -> T:
    try:
        return kind.from_dict(strict_json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StudyNotFound(
            f"{path} is missing, so {path.parent} is not a whole study; give the path of another"
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedRecord(f"{path}: {error}; it was written by another version of tune, or by hand") from error


def _typed_result(values: Any, where: str) -> TrialResult:
    try:
        version = values["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {version}, and this version of tune reads {SCHEMA_VERSION}")
        return TrialResult.from_dict(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedRecord(
            f"{where}: {type(error).__name__}: {error}; "
            "read it with the version of tune that wrote it, or remove the line"
        ) from error
