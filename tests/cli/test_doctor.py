from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from tuner.cli import accelerators, distributions, doctor, system_checks
from tuner.cli.accelerators import Accelerators, visible_devices
from tuner.cli.doctor import Finding, Level

GIB = 1024**3
GPU = Accelerators(
    names=("NVIDIA H100 80GB HBM3",) * 2,
    memory_bytes=(80 * GIB,) * 2,
    driver="580.10",
    driver_cuda="13.0",
    torch="2.13.0+cu130",
    torch_cuda="13.0",
    nccl=(("nvidia-nccl-cu13", "2.28.9"),),
)


def gpu(**changes: object) -> dict[str, Finding]:
    fields = {name: getattr(GPU, name) for name in Accelerators.__slots__} | changes
    return {f.what: f for f in doctor.device_findings(Accelerators(**fields))}  # type: ignore[arg-type]


def install(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """A distribution as the metadata reader sees it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where distributions are looked for."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


# -- as a whole ----------------------------------------------------------------------------------
def test_diagnose_looks_at_everything_and_goes_to_json() -> None:
    findings = doctor.diagnose()
    whats = {f.what for f in findings}
    assert {"python", "sqlite", "shared memory", "tune on PATH", "working directory"} <= whats
    again = json.loads(json.dumps([f.to_dict() for f in findings]))
    assert all(set(f) == {"level", "what", "evidence", "next_step"} for f in again)
    assert all(f.next_step for f in findings if f.level is not Level.OK)
    assert not [f for f in findings if "check itself failed" in f.evidence]


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_check() -> list[Finding]:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", (broken_check, doctor.python_version))
    first, second = doctor.diagnose()
    assert (first.level, first.what) == (Level.WARN, "broken check")
    assert "no such thing" in first.evidence
    assert second.what == "python"


def test_it_imports_no_heavy_library() -> None:
    code = (
        "import sys; from tuner.cli.doctor import diagnose; diagnose();"
        "print([m for m in ('torch','ray','mlflow','optuna','deepspeed','pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# -- Python and libraries ------------------------------------------------------------------------
def test_an_old_python_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    (found,) = doctor.python_version()
    assert found.level is Level.FAULT
    assert "3.11" in found.evidence


@pytest.mark.parametrize(
    "installed,level",
    [("2.13.0+cpu", "ok"), ("2.13.0", "ok"), ("2.14.1", "warn"), ("2.4.0", "fault"), ("3.0", "fault")],
)
def test_torch_against_the_pinned_one(site: Path, installed: str, level: str) -> None:
    install(site, "tune-layouts", "0.1.0", ("torch==2.13.0; extra == 'train'", "numpy>=1.26"))
    install(site, "torch", installed)
    (found,) = doctor.library_versions()
    assert (found.what, found.level) == ("torch", level)
    assert installed in found.evidence


def test_a_missing_library_names_its_extra(site: Path) -> None:
    install(site, "tune-layouts", "0.1.0", ("ray[tune]>=2.60,<3; extra == 'ray'",))
    (found,) = doctor.library_versions()
    assert found.level is Level.OK
    assert "extra ray brings ray" in found.evidence


def test_the_smallest_extra_is_named(site: Path) -> None:
    install(site, "tune-layouts", "0.1.0", tuple(
        f"{name}==1; extra == '{extra}'"
        for extra, names in {"all": ("torch", "ray", "optuna"), "train": ("torch", "optuna"), "ray": ("ray",)}.items()
        for name in names
    ))  # fmt: skip
    assert {n.name: n.extra for n in distributions.needs("tune-layouts")} == {
        "torch": "train",
        "optuna": "train",
        "ray": "ray",
    }


def test_unmet_requirements_are_found_through_others(site: Path) -> None:
    install(site, "mlflow", "3.17.2", ("mlflow-skinny==3.17.2", "waitress<4; platform_system == 'Nowhere'"))
    install(site, "mlflow-skinny", "3.17.2", ("protobuf<7", "absent>=1", "other; extra == 'more'"))
    install(site, "protobuf", "7.36.2")
    found = {f.evidence: f for f in doctor.library_conflicts()}
    assert set(found) == {
        "requires protobuf<7, but protobuf 7.36.2 is installed",
        "requires absent>=1, but absent is not installed",
    }
    assert {f.level for f in found.values()} == {Level.FAULT}
    assert {f.what for f in found.values()} == {"mlflow-skinny 3.17.2"}


def test_what_fits_together_is_one_good_finding(site: Path) -> None:
    install(site, "torch", "2.13.0+cpu", ("Jinja2", "numpy>=1"))
    install(site, "jinja2", "3.1.6")
    install(site, "numpy", "2.0.0rc1")
    (found,) = doctor.library_conflicts()
    assert found.level is Level.OK
    assert distributions.conflicts(("torch",)) == ()


def test_an_old_sqlite_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sqlite3, "sqlite_version", "3.7.17")
    assert doctor.sqlite_version()[0].level is Level.FAULT


# -- devices -------------------------------------------------------------------------------------
def test_equal_devices_that_fit_are_fine() -> None:
    found = gpu()
    assert {f.level for f in found.values()} == {Level.OK}
    assert "2 x NVIDIA H100 80GB HBM3 80.0 GiB" in found["devices"].evidence


def test_unequal_devices_are_a_fault() -> None:
    found = gpu(names=("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"), memory_bytes=(80 * GIB, 40 * GIB))
    assert found["unequal devices"].level is Level.FAULT
    assert "1 x NVIDIA A100-SXM4-40GB 40.0 GiB" in found["unequal devices"].evidence
    assert "CUDA_VISIBLE_DEVICES" in found["unequal devices"].next_step


def test_same_name_with_less_memory_is_unequal_too() -> None:
    assert "unequal devices" in gpu(memory_bytes=(80 * GIB, 40 * GIB))


def test_a_driver_older_than_the_build_is_a_fault() -> None:
    found = gpu(driver_cuda="12.4")["CUDA driver"]
    assert found.level is Level.FAULT
    assert "12.4" in found.evidence
    assert "13.0" in found.evidence


def test_within_one_major_version_an_older_driver_is_fine() -> None:
    assert gpu(driver_cuda="13.0", torch_cuda="13.2")["CUDA driver"].level is Level.OK


def test_devices_that_torch_cannot_use_are_a_warning() -> None:
    assert gpu(torch="2.13.0+cpu", torch_cuda=None, nccl=())["CUDA driver"].level is Level.WARN


@pytest.mark.parametrize(
    "nccl,level",
    [
        ((("nvidia-nccl-cu12", "2.20"),), "fault"),
        ((("nvidia-nccl-cu12", "2.20"), ("nvidia-nccl-cu13", "2.28")), "warn"),
        ((), "warn"),
    ],
)
def test_nccl_that_is_not_torchs(nccl: tuple[tuple[str, str], ...], level: str) -> None:
    assert gpu(nccl=nccl)["NCCL"].level == level


def test_no_devices_is_fine_and_said() -> None:
    (found,) = doctor.device_findings(Accelerators(note="no NVIDIA driver"))
    assert found.level is Level.OK
    assert found.evidence == "no NVIDIA driver; trials run on the CPU"


@pytest.mark.parametrize(
    "variable,kept", [(None, (0, 1, 2)), ("", ()), ("2,0", (2, 0)), ("GPU-b", (1,)), ("0,-1,2", (0,)), ("7", ())]
)
def test_visible_devices(variable: str | None, kept: tuple[int, ...]) -> None:
    assert visible_devices(["GPU-aa", "GPU-bb", "GPU-cc"], variable) == kept


def test_cuda_of_a_torch_build_is_read_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    version = tmp_path / "torch" / "version.py"
    version.write_text("from typing import Optional\ncuda: Optional[str] = '13.0'\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert accelerators.torch_cuda_version() == "13.0"
    version.write_text("cuda: Optional[str] = None\n", encoding="utf-8")
    assert accelerators.torch_cuda_version() is None


# -- the system ----------------------------------------------------------------------------------
Usage = namedtuple("Usage", "total used free")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
@pytest.mark.parametrize(
    "total_mib,free_mib,level", [(1024, 1000, "ok"), (64, 64, "ok"), (32, 32, "fault"), (1024, 3, "warn")]
)
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, total_mib: int, free_mib: int, level: str) -> None:
    usage = Usage(total_mib * 1024**2, 0, free_mib * 1024**2)
    monkeypatch.setattr(system_checks.shutil, "disk_usage", lambda _: usage)
    assert system_checks.shared_memory()[0].level == level


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_no_shared_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system_checks, "SHARED_MEMORY", tmp_path / "none")
    (found,) = system_checks.shared_memory()
    assert found.level is Level.FAULT
    assert "--shm-size" in found.next_step


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this interpreter's own scripts are; PATH leads to ``elsewhere`` first."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(system_checks.sysconfig, "get_path", lambda _: str(own))
    monkeypatch.setenv("PATH", f"{elsewhere}{os.pathsep}{own}")
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_own_tune_on_path(scripts: Path) -> None:
    script(scripts / "own" / "tune", "from tuner.cli import main")
    (found,) = system_checks.first_tune_on_path()
    assert found.level is Level.OK
    assert found.evidence == str(scripts / "own" / "tune")


@pytest.mark.parametrize("text,level", [("torchtune", "fault"), ("from tuner.cli import main", "warn")])
def test_another_tune_first_on_path(scripts: Path, text: str, level: str) -> None:
    script(scripts / "own" / "tune", "from tuner.cli import main")
    script(scripts / "elsewhere" / "tune", text)
    (found,) = system_checks.first_tune_on_path()
    assert found.level == level
    assert str(scripts / "elsewhere" / "tune") in found.evidence
    assert "-m tuner" in found.next_step


def test_a_link_to_the_own_tune_is_the_own_tune(scripts: Path) -> None:
    script(scripts / "own" / "tune", "from tuner.cli import main")
    (scripts / "elsewhere" / "tune").symlink_to(scripts / "own" / "tune")
    assert system_checks.first_tune_on_path()[0].level is Level.OK


def test_no_tune_on_path_says_how_to_call_it(scripts: Path) -> None:
    assert "-m tuner" in system_checks.first_tune_on_path()[0].evidence


def test_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert system_checks.working_directory()[0].level is Level.OK

    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(system_checks.tempfile, "TemporaryFile", refuse)
    (found,) = system_checks.working_directory()
    assert found.level is Level.FAULT
    assert str(tmp_path) in found.evidence
    assert "--out" in found.next_step


def test_extension_locks_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert system_checks.extension_locks()[0].level is Level.OK
    for name, age_s in (("cpu_adam", 3600.0), ("shm_comm", 60.0)):
        lock = tmp_path / "py311_cpu" / name / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, (time.time() - age_s,) * 2)
    old, young = system_checks.extension_locks()
    assert (old.level, young.level) == (Level.FAULT, Level.WARN)
    assert old.next_step == f"rm {tmp_path / 'py311_cpu' / 'cpu_adam' / 'lock'}"
