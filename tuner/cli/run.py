"""tune run and tune resume: wire the rooms together, pump the study, tell what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cost_models.cluster import Cluster
from tuner.cli.errors import Exit, UsageError, require_extra
from tuner.cli.plan import this_machine
from tuner.cli.preflight import check_before_start
from tuner.cli.render import RunView, show, show_json, stderr, stdout
from tuner.launchers.machine import MeasurementFailed, cached_figures, full_figures, machine_cluster
from tuner.outcome import StudyStatus
from tuner.plan.build import NothingFeasible, build_plan
from tuner.plan.plan import Plan
from tuner.records import SCHEMA_VERSION
from tuner.report.plan_text import plan_page
from tuner.report.text import result_page
from tuner.report.view import StudyView
from tuner.space.errors import SpaceError
from tuner.space.load import load_space
from tuner.tracking.errors import DamagedRecord, MissingExtra, StudyLocked, StudyNotFound
from tuner.tracking.mlflow_uri import absolute_uri
from tuner.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from tuner.launchers.forkserver import ForkServer
    from tuner.study.study import Study
    from tuner.tracking.mlflow_tracker import MlflowTracker

SERVER_START_LIMIT_S = 120.0
THIS_MACHINE = "this-machine"
TRAIN_MODULES = ("torch", "optuna", "mlflow", "plotly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds since the command began, plus what an earlier driver of the same study had used."""

    began_unix_s: float
    before_s: float = 0.0

    def __call__(self) -> float:
        return time.time() - self.began_unix_s + self.before_s


def explained(error: Exception) -> tuple[int, str] | None:
    """Exit code and message for what is not our bug; None for what is."""
    if isinstance(error, NothingFeasible):
        return Exit.NOTHING_FEASIBLE, str(error)
    if isinstance(
        error, SpaceError | UsageError | StudyNotFound | StudyLocked | DamagedRecord | MissingExtra | MeasurementFailed
    ):
        return Exit.USAGE, str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Exit.USAGE, f"{where}{error.strerror or error}\n  -> check the path, its permissions and the free space"
    return None


def run_study(path: Path, *, out: Path | None, as_json: bool) -> int:
    clock = Clock(began_unix_s=psutil.Process(os.getpid()).create_time())
    require_extra("train", TRAIN_MODULES, "tune run")
    plan = build_plan(load_space(path, this_machine=this_machine))
    check_before_start(plan)
    console = stderr() if as_json else stdout()
    _print_plan(console, plan)
    with ExitStack() as stack:
        server = _server(plan)
        plan = _measured_plan(console, plan, server, lambda m: load_space(path, this_machine=m))
        run = RunDirectory.create(plan.space.name, out, plan.space.text)
        stack.enter_context(run.lock())
        run.write_funnel(plan.funnel)
        run.update_study(
            space_path=str(path.resolve()),
            mlflow_uri=absolute_uri(plan.space.tracking.mlflow),
            experiment=plan.space.tracking.experiment,
        )
        return _drive(run, plan, server, clock, as_json=as_json)


def resume_study(study: str | None, *, out: Path | None, as_json: bool) -> int:
    require_extra("train", TRAIN_MODULES, "tune resume")
    run = RunDirectory.open(study, out=out)
    record = run.read_study()
    if record.status is StudyStatus.FINISHED:
        raise UsageError(f"{run.path} is finished; tune report {run.path} tells what it found")
    began = psutil.Process(os.getpid()).create_time()
    used_s = max([record.elapsed_s, *(r.ended_s for r in run.results())])
    clock = Clock(began_unix_s=began, before_s=used_s)
    with run.lock():
        origin = Path(record.space_path) if record.space_path else None
        plan = build_plan(load_space(run.space_path, this_machine=this_machine, origin=origin))
        check_before_start(plan)
        console = stderr() if as_json else stdout()
        console.print(f"resuming {run.path}: {len(run.results())} trials finished, {len(run.interrupted())} to repeat")
        return _drive(run, plan, _server(plan), clock, as_json=as_json)


# -- parts ---------------------------------------------------------------------------------------
def _print_plan(console: Any, plan: Plan) -> None:
    for part in plan_page(plan, with_rejected=False):
        console.print(part)


def _server(plan: Plan) -> ForkServer:
    """The warm fork server, loading in the background from here on."""
    from tuner.launchers.forkserver import ForkServer
    from tuner.training.preload import PRELOAD

    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if "lo" in psutil.net_if_addrs() and plan.space.cluster.num_nodes == 1:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    server = ForkServer(PRELOAD, environment)
    server.start()
    return server


def _await(server: ForkServer) -> None:
    if not server.wait_ready(SERVER_START_LIMIT_S):
        raise UsageError(f"the worker server did not load torch within {SERVER_START_LIMIT_S:.0f} s; see `tune doctor`")


def _measured_plan(console: Any, plan: Plan, server: ForkServer, load: Callable[..., Any]) -> Plan:
    """The plan on measured figures of this machine: measured once, then read from the cache."""
    num_devices = plan.space.cluster.num_devices
    if plan.space.cluster.device.name != THIS_MACHINE or cached_figures(num_devices) is not None:
        return plan
    console.print("measuring this machine (once; kept for later runs) ...")
    _await(server)
    figures = full_figures(num_devices, launch=server.launch)

    def measured(wanted: int) -> Cluster:
        return machine_cluster(figures, wanted)

    revised = build_plan(load(measured))
    if revised.funnel != plan.funnel or [p.layout for p in revised.shortlist] != [p.layout for p in plan.shortlist]:
        console.print("the plan on measured figures:")
        _print_plan(console, revised)
    return revised


def _drive(run: RunDirectory, plan: Plan, server: ForkServer, clock: Clock, *, as_json: bool) -> int:
    from tuner.adapters.native import NativeAdapter
    from tuner.drive.local import LocalDrive, terminate_as_interrupt
    from tuner.trials.runner import TrialRunner

    console = stderr() if as_json else stdout()
    _await(server)
    tracker = _tracker(run, plan)
    study = _study(run, plan)
    status = StudyStatus.INTERRUPTED
    try:
        with terminate_as_interrupt(), RunView(console) as live:
            drive = LocalDrive(
                study=study,
                runner=TrialRunner(server, NativeAdapter(space=plan.space), clock),
                record=run,
                tracker=tracker,
                view=live,
                clock=clock,
            )
            status = drive.run()
    finally:
        view = _conclude(run, plan, study, tracker, status, clock)
    if as_json:
        show_json(view.summary)
    else:
        show(*result_page(view))
    return {
        StudyStatus.FINISHED: Exit.DONE,
        StudyStatus.FAILED: Exit.ALL_TRIALS_FAILED,
        StudyStatus.INTERRUPTED: Exit.INTERRUPTED,
    }[status]


def _tracker(run: RunDirectory, plan: Plan) -> MlflowTracker:
    from tuner.tracking.mlflow_tracker import MlflowTracker

    record, tracked = run.read_study(), run.read_tracked()
    return MlflowTracker.start(
        record.mlflow_uri or plan.space.tracking.mlflow,
        record.experiment or plan.space.tracking.experiment,
        run.name,
        run.path,
        parent_run_id=record.parent_run_id or (tracked.parent_run_id if tracked else None),
        adapter=plan.space.trials.adapter,
    )


def _study(run: RunDirectory, plan: Plan) -> Study:
    from tuner.search.proposer import Proposer
    from tuner.search.recipe_space import RecipeSpace
    from tuner.study.study import Study

    space = plan.space
    sequence = space.data.sequence_length
    batches = sorted({b * sequence for p in plan.feasible for b in p.predictions})
    prices = {
        b * sequence: min(p.predictions[b].step_time_s for p in plan.feasible if b in p.predictions) / (b * sequence)
        for b in sorted({b for p in plan.feasible for b in p.predictions})
    }
    proposer = Proposer.open(
        run.path,
        space,
        RecipeSpace.of(space, batches),
        prices,
        space.budget.trial.tokens,
        space.model.num_non_embedding_params,
    )
    study = Study(plan, proposer)
    interrupted = run.interrupted()
    results = run.results()
    study.restore(results, interrupted)
    proposals = [s.proposal for s in (*interrupted, *(r.spec for r in results))]
    proposer.fail_stale(keep=[number for number in proposals if number is not None])
    return study


def _conclude(
    run: RunDirectory, plan: Plan, study: Study, tracker: MlflowTracker, status: StudyStatus, clock: Clock
) -> StudyView:
    """Write what the study found, whatever its end, and close the tracking."""
    from tuner.report.html import write_html

    run.write_outcome(study.outcome())
    run.write_coefficients({"schema_version": SCHEMA_VERSION, "calibration": study.ledger.calibration.to_dict()})
    run.update_study(
        status=status,
        elapsed_s=clock(),
        target_loss=study.target_loss,
        target_source=study.target_source,
        mlflow_uri=tracker.uri,
        experiment=plan.space.tracking.experiment,
        experiment_id=tracker.experiment_id,
        parent_run_id=tracker.run_id,
    )
    problems = (tracker.problem,) if tracker.problem else ()
    view = replace(StudyView.of(run, plan=plan, problems=problems), results=study.results)
    write_html(view, run.report_path)
    tracker.study_finished(view.summary, status)
    tracker.close()
    return view
