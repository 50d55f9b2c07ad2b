"""The rules that hold for the repository as a whole: what importing costs, which way imports run, what lies where."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "mlflow", "optuna", "deepspeed", "pandas")
TOP_LEVEL = {
    "pyproject.toml",
    "tuner",
    "search_spaces",
    "cost_models",
    "tests",
    "experiments",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
}
LIMIT_S = 60


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that ``statement`` brings in, in a fresh interpreter."""
    done = python(f"import sys\n{statement}\nsys.stderr.write('\\n'.join(sys.modules))")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


def tracked() -> list[Path]:
    """Files under version control, or not yet and not ignored; without git, every file of a source folder."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


# -- what importing costs ------------------------------------------------------------------------
def test_the_probe_sees_what_is_imported() -> None:
    assert "json" in loaded_by("import json")
    assert "json" not in loaded_by("import numbers")


@pytest.mark.parametrize("package", ["cost_models", "tuner", "tuner.training", "tuner.reporter", "tuner.cli"])
def test_importing_a_package_brings_in_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}").isdisjoint(HEAVY)


@pytest.mark.parametrize("package", ["tuner", "tuner.cli", "tuner.training", "tuner.reporter"])
def test_what_ranks_import_again_is_standard_library_only(package: str) -> None:
    outside = loaded_by(f"import {package}") - loaded_by("") - set(sys.stdlib_module_names)
    assert outside == {"tuner"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["plan", "--help"], ["run", "--help"], ["doctor", "--help"]]
)
def test_help_brings_in_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from tuner.cli import main\n"
        "sys.argv = ['tune', *sys.argv[1:]]\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code\n"
        f"sys.stderr.write(repr([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    done = python(code, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]"
    assert done.stdout.strip()


def test_python_m_tuner_is_tune() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "--version"], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )
    assert (done.returncode, done.stdout.strip()) == (0, tuner.__version__)


def test_every_package_init_is_light() -> None:
    rooms = [init.parent.name for init in sorted((ROOT / "tuner").glob("*/__init__.py"))]
    loaded = loaded_by("import " + ", ".join(f"tuner.{room}" for room in rooms))
    assert loaded.isdisjoint({*HEAVY, "numpy", "pydantic", "rich"})


# -- which way imports run -----------------------------------------------------------------------
def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [str(script), "--no-cache"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


def test_imports_run_downwards_only() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


ROOMS = (
    "cli", "drive", "report", "study", "search", "trials", "tracking",
    "adapters", "launchers", "plan", "space", "records", "training", "reporter",
)  # fmt: skip


@pytest.fixture
def empty_house(tmp_path: Path) -> Path:
    """Every room with nothing in it, under this repository's contracts."""
    for package in ("cost_models", "tuner", *(f"tuner/{room}" for room in ROOMS)):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def test_the_contracts_hold_where_nothing_is_imported(empty_house: Path) -> None:
    assert lint_imports(empty_house).returncode == 0


@pytest.mark.parametrize(
    "package,line",
    [
        ("tuner/records", "import tuner.plan"),
        ("tuner/report", "import tuner.drive"),
        ("cost_models", "import pandas"),
        ("cost_models", "import tuner.records"),
        ("tuner/training", "import tuner.space"),
        ("tuner/reporter", "import tuner.records"),
    ],
)
def test_the_contracts_catch_a_wrong_import(empty_house: Path, package: str, line: str) -> None:
    (empty_house / package / "__init__.py").write_text(f"{line}\n", encoding="utf-8")
    done = lint_imports(empty_house)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout


def test_every_room_has_its_place_in_the_layers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(c["layers"] for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    placed = {name.strip() for layer in layers for name in re.split(r"[|:]", layer)}
    rooms = {f"tuner.{p.name}" for p in (ROOT / "tuner").iterdir() if (p / "__init__.py").exists()}
    assert rooms - placed == {"tuner.training"}


# -- what lies where -----------------------------------------------------------------------------
def test_the_top_level_holds_only_what_it_may() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_no_file_names_a_package_index_or_a_machine() -> None:
    """Pip's own configuration says where packages come from, and nobody's folders are in the tree."""
    words = ["pypi" + ".org", "files.pythonhosted" + ".org", "extra-index" + "-url", "/root" + "/", "/home" + "/"]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if word in path.read_text(encoding="utf-8", errors="ignore")
    ]
    assert found == []


def test_every_pin_is_exact_and_torch_has_no_build_tag() -> None:
    lines = (ROOT / ".constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    assert {"jinja2", "scipy", "cmaes", "optuna", "mlflow", "pytest"} <= {name.lower() for name in pins}


def test_search_spaces_are_found() -> None:
    assert (tuner.SEARCH_SPACES / "quickstart.yaml").is_file()
