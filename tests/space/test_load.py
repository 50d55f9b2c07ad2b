"""A space file to a SearchSpace, and every way in which one can be wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cost_models.cluster import Cluster
from tuner.space.dimensions import Choice, Fixed, Range, Role
from tuner.space.errors import SpaceError
from tuner.space.load import load_space
from tuner.space.search_space import Minimize

ROOT = Path(__file__).parents[2]
Text = Callable[..., str]
ErrorOf = Callable[..., SpaceError]


def test_defaults_of_what_is_left_out(text: Text) -> None:
    space = load_space(text(data="data: {sequence_length: 128}"))
    assert space.name == "study"
    assert space.layout["tp"] == Fixed(value=1, role=Role.SPEED)
    assert space.layout["dp"] == Fixed(value="rest", role=Role.SPEED)
    assert space.hyperparameters["precision"] == Fixed(value="bf16", role=Role.BOTH)
    assert space.objective.minimize is Minimize.TIME_TO_LOSS
    assert space.objective.target_loss is None
    assert space.data.tokens == 20 * space.model.num_params
    assert space.budget.trial.tokens == 100 * 2048
    assert space.tracking.experiment == "study"
    assert space.cluster.memory_limit_bytes == space.cluster.device.memory_bytes
    assert any("20 per parameter" in notice for notice in space.notices)


def test_everything_written_is_used(text: Text) -> None:
    space = load_space(
        text(
            name="name: mine",
            cluster="cluster: {device: H100 SXM, nodes: 2, devices_per_node: 4, memory: 40 GiB, memory_reserve: 2 GiB, "
            "framework_base: 1 GiB, intra_node: 100 GB/s, inter_node: {bandwidth: 12 GB/s, latency: 7 us}, "
            "price_per_device_hour: 2.5}",
            layout="layout: {tp: [1, 2], micro_batch: {low: 1, high: 8, log: true}, dp: [2, 4]}",
            objective="objective: {minimize: time_to_loss, target_loss: 3.2}",
            budget="budget: {wall_clock: 1 h, trials: 9, trial: {tokens: 200k, wall_clock: 1 min}, "
            "confirm: {best: 3, seeds: 4, tokens: 300k}}",
            search="search: {sampler: tpe, shortlist: 5, seed: 7}",
            tracking="tracking: {mlflow: 'http://host:5000', experiment: e}",
        )
    )
    cluster = space.cluster
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.num_devices) == (2, 4, 8)
    assert (cluster.memory_limit_bytes, cluster.memory_reserve_bytes) == (40 * 2**30, 2 * 2**30)
    assert cluster.framework_base_bytes == 2**30
    assert cluster.intra_node.bandwidth_bytes_per_s == 100e9
    assert (cluster.inter_node.bandwidth_bytes_per_s, cluster.inter_node.latency_s) == (12e9, 7e-6)
    assert cluster.price_per_device_hour == 2.5
    assert space.layout["micro_batch"] == Choice(values=(1, 2, 4, 8), role=Role.SPEED)
    assert space.layout["dp"] == Choice(values=(2, 4), role=Role.SPEED)
    assert (space.objective.minimize, space.objective.target_loss) == (Minimize.TIME_TO_LOSS, 3.2)
    assert (space.budget.wall_clock_s, space.budget.trials, space.budget.trial.wall_clock_s) == (3600, 9, 60)
    assert (space.budget.confirm.best, space.budget.confirm.seeds, space.budget.confirm.tokens) == (3, 4, 300_000)
    assert (space.search.sampler, space.search.shortlist, space.search.seed) == ("tpe", 5, 7)
    assert (space.name, space.tracking.mlflow, space.tracking.experiment) == ("mine", "http://host:5000", "e")


def test_this_machine_is_measured_for_its_devices(text: Text, machine: Callable[[int], Cluster]) -> None:
    cluster = "cluster: {device: this-machine, devices_per_node: 3, memory: 440 MiB, framework_base: 400 MiB}"
    space = load_space(text(cluster=cluster), this_machine=machine)
    assert space.cluster.num_devices == 3
    assert space.cluster.memory_limit_bytes == 440 * 2**20
    assert space.cluster.compute_slots_per_node == 2
    assert space.hyperparameters["precision"] == Fixed(value="fp32", role=Role.BOTH)


def test_nothing_is_measured_while_something_is_wrong(text: Text) -> None:
    def measure(_: int) -> Cluster:
        raise AssertionError("measured")

    wrong = text(cluster="cluster: {device: this-machine}", layout="layout: {tq: 1}")
    with pytest.raises(SpaceError, match="tq"):
        load_space(wrong, this_machine=measure)


def test_paths_are_relative_to_the_file(tmp_path: Path, text: Text) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"x")
    file = tmp_path / "my space.yaml"
    file.write_text(text(data="data: {source: ./tokens.bin, sequence_length: 128, tokens: 400k}"), encoding="utf-8-sig")
    space = load_space(file)
    assert space.data.source == tmp_path / "tokens.bin"
    assert (space.name, space.path) == ("my-space", file)
    assert space.notices == load_space(str(file)).notices


@pytest.mark.parametrize("file", sorted((ROOT / "search_spaces").glob("*.yaml")), ids=lambda f: f.stem)
def test_shipped_spaces_load(file: Path, machine: Callable[[int], Cluster]) -> None:
    space = load_space(file, this_machine=machine)
    assert space.batch_sizes
    assert not space.notices


def test_all_problems_come_at_once(error_of: ErrorOf) -> None:
    error = error_of(
        version="version: 3",
        model="model: gpt5",
        layout="layout: {tp: [], zer: 1}\nlayout: {}",
        budget="budget: {wall_clock: soon}",
        trials="trials: {adapter: nemo}",
    )
    keys = [p.key for p in error.problems]
    assert set(keys) >= {"version", "layout", "budget.wall_clock", "trials.adapter"}
    assert [p.line for p in error.problems] == sorted(p.line for p in error.problems)


@pytest.mark.parametrize("kind", ["missing", "directory", "latin-1", "large", "nul"])
def test_unreadable_files(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "space.yaml"
    expected = {
        "missing": "no such file", "directory": "a directory", "latin-1": "not UTF-8", "large": "larger than 1 MiB",
        "nul": "cannot be read",
    }  # fmt: skip
    if kind == "directory":
        file.mkdir()
    elif kind == "latin-1":
        file.write_bytes(b"version: 1\nname: caf\xe9\n")
    elif kind == "large":
        file.write_bytes(b"# " + b"x" * 2**20)
    elif kind == "nul":
        file = tmp_path / "a\0b"
    with pytest.raises(SpaceError, match=expected[kind]) as caught:
        load_space(file)
    if kind == "latin-1":
        assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 10)


def test_a_near_file_name_is_offered(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").touch()
    with pytest.raises(SpaceError, match=r'did you mean "quickstart\.yaml"'):
        load_space(tmp_path / "quickstrat.yaml")


def test_warmup_steps_are_whole_and_fractions_stay(text: Text) -> None:
    steps = load_space(text(hyperparameters="hyperparameters: {batch_tokens: 1Ki, warmup: {low: 1.0e1, high: 2.0e1}}"))
    assert steps.hyperparameters["warmup"] == Range(low=10, high=20, role=Role.CONVERGENCE, integer=True)
    fraction = load_space(text(hyperparameters="hyperparameters: {batch_tokens: 1Ki, warmup: [0.1, 5]}"))
    assert fraction.hyperparameters["warmup"] == Choice(values=(0.1, 5), role=Role.CONVERGENCE)


@pytest.mark.parametrize(
    "form, expected",
    [
        ("1024", (8,)),
        ("[2Ki, 1Ki, 2048]", (8, 16)),
        ("{low: 1Ki, high: 8Ki, log: true}", (8, 16, 32, 64)),
        ("{low: 1Ki, high: 2Ki, step: 384}", (8, 11, 14)),
        ("{low: 1Ki, high: 2Ki}", (8, 10, 12, 14, 16)),
    ],
)
def test_batches_in_sequences(text: Text, form: str, expected: tuple[int, ...]) -> None:
    assert load_space(text(hyperparameters=f"hyperparameters: {{batch_tokens: {form}}}")).batch_sizes == expected


def test_loading_needs_no_heavy_library() -> None:
    code = (
        "import sys, tuner.space.load, tuner.plan.build\n"
        "heavy = {'torch', 'ray', 'mlflow', 'optuna', 'deepspeed', 'pandas', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_one_wrong_key_does_not_hide_another_of_its_section(error_of: ErrorOf) -> None:
    error = error_of(
        layout="layout: {zero: [], require: [tpp == 1]}",
        hyperparameters="hyperparameters: {batch_tokens: 1000, learning_rate: {low: 2, high: 1}, warmup: 2.5}",
    )
    keys = {p.key for p in error.problems}
    assert keys == {
        "layout.zero",
        "layout.require[0]",
        "hyperparameters.batch_tokens",
        "hyperparameters.learning_rate",
        "hyperparameters.warmup",
    }
