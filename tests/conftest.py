"""What every test may use, and the rule on skipping: a missing library skips here, and fails where CI=true."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

IN_CI = os.environ.get("CI", "").lower() == "true"
EXPECTED_SKIPS = Path(__file__).with_name("expected_skips.txt")
REFERENCE_VARIABLE = "TUNE_REFERENCE_DATA"
NO_REFERENCE = f"{REFERENCE_VARIABLE} is not set"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
LISTED_LIBRARIES = ("torch", "deepspeed", "ray", "optuna", "mlflow", "numpy")


# -- what a test needs ---------------------------------------------------------------------------
def require(name: str) -> Any:
    """The module ``name``, or for ``browser`` the path of one; absent: a skip here, a failure where CI=true."""
    if name == "browser":
        found: Any = next((path for path in map(shutil.which, BROWSERS) if path), None)
    else:
        try:
            found = importlib.import_module(name)
        except ImportError:
            found = None
    if found is None:
        reason = f"needs {name}, which is not installed"
        if IN_CI:
            pytest.fail(f"{reason}; with CI=true this is a failure", pytrace=False)
        pytest.skip(reason)
    return found


@pytest.fixture
def needs() -> Callable[[str], Any]:
    """``needs("ray")`` inside a test; ``@pytest.mark.needs("ray")`` on one does the same."""
    return require


@pytest.fixture
def reference_data() -> Path:
    """The folder of reference data that is not part of this repository."""
    folder = os.environ.get(REFERENCE_VARIABLE)
    if not folder:
        pytest.skip(NO_REFERENCE)
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"{REFERENCE_VARIABLE}={folder} is not a folder", pytrace=False)
    return path


@pytest.fixture(scope="session")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store that is migrated already, to be copied: migrating takes seconds."""
    require("mlflow")
    from tuner.tracking.mlflow_connect import connect

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            require(name)


@pytest.fixture(autouse=True, scope="session")
def own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Figures kept of this machine, and whatever else is cached, stay out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


# -- skips that are expected, and the table of results -------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--result-table", metavar="FILE", help="write the outcome of each test file as a Markdown table")


def expected_skips() -> list[str]:
    """Patterns of test names, one a line; what follows # is the reason."""
    lines = EXPECTED_SKIPS.read_text(encoding="utf-8").splitlines()
    return [pattern for line in lines if (pattern := line.partition("#")[0].strip())]


class Outcomes:
    """What became of each test: for the skips named at the end, and for the table."""

    def __init__(self, table: Path | None) -> None:
        self.table = table
        self.skipped: dict[str, str] = {}
        self.counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        if report.failed:
            self.counts[file]["failed"] += 1
        elif hasattr(report, "wasxfail"):
            self.counts[file]["xfailed"] += 1
        elif report.skipped:
            self.counts[file]["skipped"] += 1
            self.skipped[report.nodeid] = _reason(report)
        elif report.when == "call":
            self.counts[file]["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = _reason(report)

    @property
    def unexpected(self) -> dict[str, str]:
        allowed = expected_skips()
        return {
            name: reason
            for name, reason in self.skipped.items()
            if not _for_want_of_reference(reason) and not any(fnmatch(name, pattern) for pattern in allowed)
        }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if IN_CI and self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.table is not None:
            self.table.write_text(self._markdown(), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.skipped:
            return
        terminalreporter.section("skipped tests")
        without_data = [name for name, reason in self.skipped.items() if _for_want_of_reference(reason)]
        if without_data:
            terminalreporter.line(f"{len(without_data)} skipped: {NO_REFERENCE}")
        for name, reason in sorted(self.skipped.items()):
            if not _for_want_of_reference(reason):
                mark = "UNEXPECTED" if name in self.unexpected else "expected"
                terminalreporter.line(f"{mark} {name}: {reason}")
        if IN_CI and self.unexpected:
            terminalreporter.line(f"CI fails: {len(self.unexpected)} skips are not in tests/{EXPECTED_SKIPS.name}")

    def _markdown(self) -> str:
        kinds = ("passed", "failed", "skipped", "xfailed")
        rows = [
            f"| {file} | {' | '.join(str(self.counts[file][kind]) for kind in kinds)} | {self.seconds[file]:.1f} |"
            for file in sorted(self.counts)
        ]
        sums = [sum(self.counts[file][kind] for file in self.counts) for kind in kinds]
        total = f"| all | {' | '.join(map(str, sums))} | {sum(self.seconds.values()):.1f} |"
        lines = [
            "# make test-all: the last result",
            "",
            f"{time.strftime('%Y-%m-%d')}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}, {', '.join(_versions())}.",
            "",
            "| file | passed | failed | skipped | xfailed | seconds |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            total,
        ]
        return "\n".join(lines) + "\n"


def pytest_configure(config: pytest.Config) -> None:
    table = config.getoption("--result-table")
    config.pluginmanager.register(Outcomes(Path(table) if table else None), "outcomes")


def _for_want_of_reference(reason: str) -> bool:
    """Counted, not listed; where the folder is named, whatever is missing in it has to be explained."""
    return reason.startswith(REFERENCE_VARIABLE) and not os.environ.get(REFERENCE_VARIABLE)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _versions() -> Iterator[str]:
    for name in LISTED_LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"
