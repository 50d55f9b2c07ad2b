"""Real trials on up to eight processes: no layout changes the mathematics, each option changes the bytes it names."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the native trial needs the [train] extra")

from cost_models.shape import ModelShape
from tests.training import ranks
from tests.training.ranks import GPT, LLAMA, SHAPES, Trial, job_of
from tuner.training.preload import PRELOAD

LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 1e-3
"""Relative. Norms wander an order of magnitude more than losses over 20 fp32 steps; a wrong one is off by percents."""

Run = Callable[..., Trial]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[None]:
    """A server of our own: whichever other tests have started lacks torch, and ours is not for them."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    forkserver.set_forkserver_preload(list(PRELOAD))
    forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    forkserver.set_forkserver_preload([])


@pytest.fixture(scope="module")
def run(fork_server: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    def run(entry: Callable[[str, int], None] = ranks.train, **values: Any) -> Trial:
        return ranks.run(job_of(tmp_path_factory.mktemp("trial"), **values), entry)

    return run


@pytest.fixture(scope="module")
def single(run: Run) -> Callable[[ModelShape], Trial]:
    """The single process's trial of each shape, run once."""
    done: dict[str, Trial] = {}

    def single(shape: ModelShape) -> Trial:
        if shape.name not in done:
            done[shape.name] = well(run(shape=shape, eval_every=10))
        return done[shape.name]

    return single


def well(trial: Trial) -> Trial:
    assert set(trial.exit_codes) == {0}, f"exit codes {trial.exit_codes}\n{trial.log[-3000:]}"
    assert set(trial.said("phase")) == {"done"}
    return trial


def drift(trial: Trial, reference: Trial) -> tuple[float, float]:
    """Largest difference of the loss, and largest relative one of the gradient norm, over all steps."""
    pairs = list(zip(trial.steps, reference.steps, strict=True))
    losses = [abs(a["loss"] - b["loss"]) for a, b in pairs]
    norms = [abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in pairs]
    return max(losses), max(norms)


# -- the layout does not change the mathematics --------------------------------------------------------
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"dp": 2, "micro_batch": 4}),
    ("gpt", {"dp": 4, "micro_batch": 2, "zero": 3}),
    ("gpt", {"dp": 8, "micro_batch": 1, "zero": 2}),
    ("gpt", {"tp": 2, "recompute": "full"}),
    ("gpt", {"tp": 4}),
    ("gpt", {"pp": 2, "micro_batch": 4}),
    ("gpt", {"dp": 2, "pp": 2, "micro_batch": 2, "zero": 2}),
    ("gpt", {"dp": 2, "pp": 2, "micro_batch": 4, "recompute": "full"}),
    ("gpt", {"tp": 2, "pp": 2}),
    ("gpt", {"dp": 2, "tp": 2, "pp": 2, "micro_batch": 4, "zero": 3}),
    ("llama", {"dp": 4, "micro_batch": 2}),
    ("llama", {"tp": 2}),
    ("llama", {"dp": 2, "pp": 2, "micro_batch": 4, "zero": 3, "recompute": "full"}),
    ("llama", {"dp": 2, "tp": 2, "micro_batch": 4, "zero": 2}),
    ("llama", {"dp": 2, "tp": 2, "pp": 2, "micro_batch": 4}),
]
"""Two or more passes per step in each, so that gradients really accumulate."""


def _label(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(f"{name}{degree}" for name, degree in value.items())


@pytest.mark.parametrize("name,layout", LAYOUTS, ids=_label)
def test_same_curve_as_one_process(
    run: Run, single: Callable[[ModelShape], Trial], name: str, layout: dict[str, Any]
) -> None:
    reference = single(SHAPES[name])
    trial = well(run(shape=SHAPES[name], eval_every=10, **layout))
    loss, norm = drift(trial, reference)
    assert loss < LOSS_TOLERANCE
    assert norm < NORM_TOLERANCE
    assert [e["step"] for e in trial.evals] == [10, 20]
    for ours, theirs in zip(trial.evals, reference.evals, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], abs=LOSS_TOLERANCE)


def test_reference_clips_learns_and_accumulates(single: Callable[[ModelShape], Trial]) -> None:
    for shape in (GPT, LLAMA):
        steps = single(shape).steps
        clipped = [step["grad_norm"] > ranks.CLIP_NORM for step in steps]
        assert 5 <= sum(clipped) <= 15, "some steps are clipped and some are not"
        assert steps[0]["loss"] == pytest.approx(math.log(shape.vocab), abs=0.1)
        assert steps[-1]["loss"] < steps[0]["loss"] - 0.5


@pytest.mark.parametrize("layout", [{"tp": 2}, {"dp": 2, "pp": 2, "micro_batch": 4}], ids=_label)
def test_a_wrong_norm_is_seen(run: Run, single: Callable[[ModelShape], Trial], layout: dict[str, Any]) -> None:
    trial = well(run(ranks.train_counting_replicas_as_parts, **layout))
    loss, norm = drift(trial, single(GPT))
    assert norm > 10 * NORM_TOLERANCE
    assert loss > LOSS_TOLERANCE


def test_a_forgotten_sum_over_heads_is_seen(run: Run, single: Callable[[ModelShape], Trial]) -> None:
    trial = well(run(ranks.train_without_summing_parts, shape=LLAMA, tp=2))
    assert max(drift(trial, single(LLAMA))) > NORM_TOLERANCE


def test_bf16_runs_under_every_axis(run: Run) -> None:
    one = well(run(precision="bf16", num_steps=4))
    assert drift(one, well(run(num_steps=4)))[0] > 1e-5, "bf16 has to change the numbers"
    for layout in ({"dp": 2, "zero": 3}, {"tp": 2}, {"pp": 2}):
        trial = well(run(precision="bf16", num_steps=4, **layout))
        assert drift(trial, one)[0] < 0.05, layout


# -- labels and bytes ----------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("layout", [{"dp": 4, "micro_batch": 2}, {"dp": 2, "pp": 2, "micro_batch": 4}], ids=_label)
def test_zero_shards_what_its_label_says(run: Run, layout: dict[str, Any], zero: int) -> None:
    shape = LLAMA
    trial = well(run(shape=shape, zero=zero, num_steps=1, **layout))
    copies = layout["dp"] if zero == 0 else 1
    whole = 4 * shape.num_params
    assert sum(trial.said("params_bytes")) == copies * whole
    assert sum(trial.said("grad_bytes")) == copies * whole
    assert sum(trial.said("optimizer_bytes")) == 2 * copies * whole
    gathered = 1 if zero == 3 else layout["dp"]
    assert sum(trial.said("gathered_params_bytes")) == gathered * whole


HEAVY = ModelShape(
    name="heavy", num_layers=4, hidden=256, num_heads=4, num_kv_heads=4, head_dim=64, ffn_hidden=1024, vocab=256
)  # fmt: skip
"""Weights far above activations: what is sharded shows in the memory of the process."""


@pytest.mark.parametrize("layout", [{"dp": 2}, {"dp": 2, "pp": 2}], ids=_label)
def test_sharding_shows_in_live_memory(run: Run, layout: dict[str, Any]) -> None:
    """Bytes that malloc has given out: of the second step between passes, at its highest, and after it."""
    job = {"shape": HEAVY, "num_steps": 2, "batch_sequences": 8, "micro_batch": 1, **layout}
    live = {zero: well(run(ranks.train_watching_memory, zero=zero, **job)).live[0] for zero in (0, 2, 3)}
    weights = 4 * HEAVY.num_params / layout.get("pp", 1)
    assert live[0]["rest"] > 3.9 * weights
    assert live[2]["rest"] < 2.5 * weights
    assert live[3]["rest"] < 2.5 * weights
    assert live[3]["peak"] < live[2]["peak"]
    for zero, gathered in ((2, 1.0), (3, 0.25)):
        between = live[zero]["between"] - live[zero]["before"]
        assert between < (0.5 + gathered + 0.2) * weights, "whole gradients were kept from pass to pass"


def test_micro_batch_and_recompute_show_in_memory(run: Run) -> None:
    sizes = {"num_steps": 2, "batch_sequences": 128}
    grown = [
        well(run(**sizes, micro_batch=size, recompute=kind)).said("memory_growth_bytes")[0]
        for size, kind in ((16, "none"), (64, "none"), (64, "full"))
    ]
    assert grown[1] > 2 * grown[0]
    assert grown[2] < 0.85 * grown[1]


def test_headroom_makes_a_real_allocation_fail(run: Run) -> None:
    job = {"num_steps": 2, "micro_batch": 8, "batch_sequences": 32, "dp": 2}
    need = max(well(run(**job)).said("memory_growth_bytes"))
    well(run(**job, memory_headroom_bytes=1.3 * need))
    trial = run(**job, memory_headroom_bytes=0.6 * need)
    assert set(trial.exit_codes) == {1}
    first = min((e for e in trial.said("exception") if not e["secondary"]), key=lambda e: e["unix_s"])
    assert first["type"] == "RuntimeError"
    assert "DefaultCPUAllocator: can't allocate memory" in first["message"]
    assert max(trial.said("memory_growth_bytes")) <= 0.6 * need


# -- what a trial leaves behind ------------------------------------------------------------------------
def test_metrics_and_report(run: Run) -> None:
    trial = well(run(dp=2, num_steps=3, eval_every=2))
    assert [(line["kind"], line["step"]) for line in trial.lines] == [
        ("step", 1), ("step", 2), ("eval", 2), ("step", 3), ("eval", 3),
    ]  # fmt: skip
    step = trial.steps[1]
    assert step["tokens"] == 2 * 16 * 32
    assert step["tokens_per_s"] == pytest.approx(16 * 32 / step["step_time_s"])
    assert step["lr"] == pytest.approx(3e-3 * 2 / 4)
    assert step["train_s"] == pytest.approx(sum(s["step_time_s"] for s in trial.steps[:2]))
    for report in trial.reports:
        assert len(report["step_times_s"]) == 3
        assert set(report["breakdown_s"]) == {"data", "forward_backward", "sync", "optimizer"}
        assert report["exception"] is None
        assert report["memory_base_bytes"] > 0


def test_the_target_ends_all_ranks(run: Run) -> None:
    trial = well(run(dp=2, pp=2, micro_batch=4, num_steps=20, eval_every=2, target_loss=5.0))
    assert trial.evals[-1]["val_loss"] <= 5.0
    assert all(e["val_loss"] > 5.0 for e in trial.evals[:-1])
    assert len(trial.steps) == trial.evals[-1]["step"] < 20


def test_the_seed_changes_weights_and_batches(run: Run, single: Callable[[ModelShape], Trial]) -> None:
    other = well(run(seed=1, num_steps=2))
    assert other.steps[0]["loss"] != single(GPT).steps[0]["loss"]
    again = well(run(num_steps=2))
    assert [s["loss"] for s in again.steps] == [s["loss"] for s in single(GPT).steps[:2]]


def test_a_lost_loss_is_named(run: Run) -> None:
    trial = run(dp=2, learning_rate=1e30, clip_norm=0.0, num_steps=8)
    assert set(trial.exit_codes) == {1}
    assert {e["type"] for e in trial.said("exception")} == {"NonFiniteLoss"}
    assert "lower learning rate" in trial.reports[0]["exception"]["message"]


def test_symptoms_are_told_from_the_cause(run: Run) -> None:
    trial = run(ranks.fail_at_step_three, dp=2)
    assert trial.exit_codes == (1, 1)
    symptom, cause = trial.said("exception")
    assert cause["message"] == "a cause of its own"
    assert not cause["secondary"]
    assert symptom["secondary"]
    assert symptom["unix_s"] >= cause["unix_s"]


def test_bad_data_ends_the_trial_with_its_message(run: Run, tmp_path: Path) -> None:
    trial = run(dp=2, data_source=str(tmp_path / "missing.txt"))
    assert trial.exit_codes == (1, 1)
    assert "missing.txt: no such file" in trial.reports[0]["exception"]["message"]
    assert trial.reports[1]["exception"]["secondary"]


def test_the_module_is_an_entry_too(tmp_path: Path) -> None:
    job_of(tmp_path, num_steps=1).write(tmp_path / "job.json")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tuner.training.worker", str(tmp_path / "job.json"), "0"],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").count("\n") == 1


def test_preloading_starts_no_thread() -> None:
    code = f"import os\nfor name in {PRELOAD!r}: __import__(name)\nprint(len(os.listdir('/proc/self/task')))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "1", "NumPy's own pool aside, which is safe to fork, nothing may start a thread"
