"""A small study made up by hand: three probes of which one ran out of memory, four converge and four confirm trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cost_models.cluster import Cluster, Device, Link
from cost_models.layout import Layout
from cost_models.shape import ModelShape
from cost_models.units import GIB, MIB
from cost_models.workload import Precision
from tuner.outcome import Contender, Outcome, StudyStatus
from tuner.plan.plan import Funnel, Plan, PlannedLayout
from tuner.records import (
    CurvePoint,
    Failure,
    FailureKind,
    Measurement,
    Predicted,
    Purpose,
    Recipe,
    Status,
    TrialResult,
    TrialSpec,
)
from tuner.report.view import StudyView
from tuner.space.search_space import (
    Budget,
    ConfirmLimits,
    DataSpec,
    Objective,
    SearchOptions,
    SearchSpace,
    TrackingOptions,
    TrialLimits,
    TrialOptions,
)

SEQUENCE_LENGTH = 64
LAYOUTS = (Layout(dp=4, micro_batch=2), Layout(dp=2, tp=2, zero=1, micro_batch=2), Layout(dp=2, pp=2, micro_batch=4))
STEP_TIMES_S = (0.21, 0.34, 0.29)
TARGET_LOSS = 2.4
FUNNEL = Funnel(
    enumerated=48,
    invalid=12,
    does_not_fit=14,
    feasible=22,
    shortlisted=3,
    reasons={"memory": 14, "batch % (micro_batch * dp)": 9, "heads % tp": 3},
)


def predicted(index: int) -> Predicted:
    step_s, memory = STEP_TIMES_S[index] * 1.08, (420 + 40 * index) * MIB
    return Predicted(
        step_time_s=step_s,
        memory_bytes=memory,
        step_time_interval_s=(step_s * 0.85, step_s * 1.15),
        memory_interval_bytes=(memory * 0.9, memory * 1.1),
    )


def recipe(learning_rate: float = 2e-3) -> Recipe:
    return Recipe(batch_tokens=2048, learning_rate=learning_rate, warmup=20)


def spec(trial_id: int, purpose: Purpose, index: int, *, learning_rate: float = 2e-3, seed: int = 0) -> TrialSpec:
    steps = {Purpose.PROBE: 12, Purpose.CONVERGE: 120, Purpose.CONFIRM: 200}[purpose]
    return TrialSpec(
        id=trial_id,
        purpose=purpose,
        layout=LAYOUTS[index],
        recipe=recipe(learning_rate),
        seed=seed,
        num_steps=steps,
        horizon_steps=200,
        eval_every=0 if purpose is Purpose.PROBE else 20,
        sequence_length=SEQUENCE_LENGTH,
        wall_clock_s=60.0,
        predicted=predicted(index),
        target_loss=TARGET_LOSS if purpose is Purpose.CONFIRM else None,
        label="" if purpose is not Purpose.CONFIRM else "default" if index == 1 else "finalist 1",
        exclusive=purpose is not Purpose.CONVERGE,
    )


def curve(index: int, learning_rate: float, num_steps: int, seed: int = 0) -> tuple[CurvePoint, ...]:
    pace = 60 * (1 + 0.4 * abs(math.log(learning_rate / 2e-3)))
    return tuple(
        CurvePoint(
            step=step,
            tokens=step * 2048,
            train_s=step * STEP_TIMES_S[index],
            loss=2.1 + 3.4 * math.exp(-step / pace) + 0.01 * seed,
        )
        for step in range(0, num_steps + 1, 20)
    )


def result(one: TrialSpec, index: int) -> TrialResult:
    points = curve(index, one.recipe.learning_rate, one.num_steps, one.seed) if one.eval_every else ()
    reached = [p.train_s for p in points if one.target_loss is not None and p.loss <= one.target_loss]
    return TrialResult(
        spec=one,
        status=Status.OK,
        measured=Measurement(
            step_time_s=STEP_TIMES_S[index],
            memory_bytes=(400 + 45 * index) * MIB,
            num_steps=one.num_steps - 3,
            tokens_per_s=2048 / STEP_TIMES_S[index],
            breakdown_s={"data": 0.001, "forward_backward": 0.15, "sync": 0.03, "optimizer": 0.01},
        ),
        curve=points,
        time_to_loss_s=reached[0] if reached else None,
        final_train_loss=points[-1].loss - 0.05 if points else 5.1,
        started_s=10.0 * one.id,
        ended_s=10.0 * one.id + 8.0,
    )


def out_of_memory(one: TrialSpec) -> TrialResult:
    return TrialResult(
        spec=one,
        status=Status.FAILED,
        failure=Failure(
            kind=FailureKind.OOM,
            evidence="RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate <b>",
            rank=1,
            hint="smaller micro_batch, or a higher zero stage",
        ),
        started_s=20.0,
        ended_s=24.0,
    )


def some_results() -> tuple[TrialResult, ...]:
    probes = [result(spec(0, Purpose.PROBE, 0), 0), result(spec(1, Purpose.PROBE, 1), 1)]
    probes.append(out_of_memory(spec(2, Purpose.PROBE, 2)))
    rates = (5e-4, 1e-3, 2e-3, 8e-3)
    converge = [result(spec(3 + i, Purpose.CONVERGE, 0, learning_rate=rate), 0) for i, rate in enumerate(rates)]
    diverged = converge[-1]
    converge[-1] = replace(
        diverged,
        status=Status.FAILED,
        final_train_loss=math.nan,
        curve=(*diverged.curve[:2], replace(diverged.curve[2], loss=math.inf)),
        failure=Failure(kind=FailureKind.NAN, evidence="training loss nan at step 44", hint="a lower learning rate"),
    )
    converge[0] = replace(converge[0], status=Status.STOPPED, curve=converge[0].curve[:4])
    confirm = [result(spec(7 + i, Purpose.CONFIRM, 1 - i // 2, seed=i % 2), 1 - i // 2) for i in range(4)]
    return (*probes, *converge, *confirm)


def some_outcome(results: tuple[TrialResult, ...]) -> Outcome:
    default, winner = results[7:9], results[9:11]
    return Outcome(
        winner=contender(winner, 0),
        default=contender(default, 1),
        separable=True,
        target_loss=TARGET_LOSS,
        target_source="auto: the best converge loss plus 0.1",
        gain=1.62,
        notes=("the third finalist was left out: budget",),
    )


def contender(results: tuple[TrialResult, ...], index: int) -> Contender:
    times = [r.time_to_loss_s for r in results if r.time_to_loss_s is not None]
    middle = sum(times) / len(times)
    return Contender(
        trial_ids=tuple(r.spec.id for r in results),
        layout=LAYOUTS[index],
        recipe=recipe(),
        time_to_loss_s=middle,
        interval_s=(middle * 0.94, middle * 1.07),
        extrapolated=index == 1,
        num_seeds=len(results),
    )


def some_space() -> SearchSpace:
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=2e-5)
    device = Device(
        name="this-machine",
        peak_flops_per_s={Precision.FP32: 5e10},
        memory_bytes=4 * GIB,
        memory_bandwidth_bytes_per_s=1e10,
        kind="cpu",
    )
    return SearchSpace(
        name="made-up",
        model=ModelShape(
            name="gpt-small <b>",
            num_layers=4,
            hidden=128,
            num_heads=4,
            num_kv_heads=4,
            head_dim=32,
            ffn_hidden=512,
            vocab=256,
        ),
        cluster=Cluster(
            device=device,
            num_nodes=1,
            devices_per_node=4,
            intra_node=link,
            inter_node=link,
            memory_limit_bytes=600 * MIB,
        ),
        data=DataSpec(sequence_length=SEQUENCE_LENGTH, tokens=1e8),
        layout={},
        require=(),
        hyperparameters={},
        objective=Objective(),
        budget=Budget(
            wall_clock_s=240,
            trials=None,
            trial=TrialLimits(tokens=250_000, wall_clock_s=60),
            confirm=ConfirmLimits(),
        ),
        search=SearchOptions(),
        trials=TrialOptions(),
        tracking=TrackingOptions(mlflow="sqlite:///mlflow.db", experiment="made-up"),
        text="version: 1\nname: made-up\n",
    )


def some_plan() -> Plan:
    parts: Mapping[str, float] = {"compute": 0.2, "data_parallel": 0.05}
    planned = tuple(
        PlannedLayout(
            layout=layout,
            predictions={32: predicted(index)},
            fit_probability=0.9,
            limited_by=("compute", "tensor_parallel", "pipeline_bubble")[index],
            mfu=0.3,
            memory_parts_bytes={"weights": 1.0 * MIB},
            time_parts_s=parts,
            best_batch=32,
        )
        for index, layout in enumerate(LAYOUTS)
    )
    return Plan(
        space=some_space(),
        funnel=FUNNEL,
        feasible=planned,
        shortlist=planned,
        rejected=(),
        assumptions=("the link's latency is a guess",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One study at four stages of its life."""

    finished: StudyView
    running: StudyView
    empty: StudyView
    failed: StudyView


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    run_dir: Path = tmp_path_factory.mktemp("studies") / "made-up"
    results = some_results()
    finished = StudyView(
        name="made-up",
        run_dir=run_dir,
        status=StudyStatus.FINISHED,
        funnel=FUNNEL,
        plan=some_plan(),
        results=results,
        outcome=some_outcome(results),
        mlflow_run_id="0" * 32,
        mlflow_hint=(
            "mlflow ui --backend-store-uri sqlite:////data/mlflow.db",
            "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning",
        ),
        elapsed_s=231.0,
    )
    return Stages(
        finished=finished,
        running=replace(finished, status=StudyStatus.RUNNING, results=results[:4], outcome=None, plan=None),
        empty=replace(
            finished, status=StudyStatus.INTERRUPTED, results=(), outcome=None, elapsed_s=None, mlflow_hint=()
        ),
        failed=replace(finished, status=StudyStatus.FAILED, results=results[2:3], outcome=None, mlflow_run_id=None),
    )
