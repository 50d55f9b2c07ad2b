"""The verbs. Each is a thin function: it listens, calls the rooms below, and hands what they say to render."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

import tuner
from tuner.cli.errors import Exit

app = App(
    name="tune",
    help="Find the training configuration that reaches a target loss soonest.",
    version=lambda: tuner.__version__,
    help_format="plaintext",
    result_action="return_value",
)

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Machine output on stdout, progress on stderr.")]
Out = Annotated[Path | None, Parameter(help="Folder for studies; default ./tune-runs.")]
Study = Annotated[str | None, Parameter(help="A path, a name under ./tune-runs, or nothing for the newest.")]


@app.command
def run(space: Path, *, out: Out = None, json: Json = False) -> int:
    """Search a space by real training and say which configuration reaches the target loss soonest.

    Parameters
    ----------
    space
        The space.yaml to search.
    """
    from tuner.cli.run import run_study

    return run_study(space, out=out, as_json=json)


@app.command
def resume(study: Study = None, *, out: Out = None, json: Json = False) -> int:
    """Go on with a study that ended early: finished trials stand, interrupted ones run again."""
    from tuner.cli.run import resume_study

    return resume_study(study, out=out, as_json=json)


@app.command
def plan(space: Path, *, rejected: Annotated[bool, Parameter(negative=())] = False, json: Json = False) -> int:
    """Show which layouts are possible, which fit, and which are worth trying; nothing is started.

    Parameters
    ----------
    space
        The space.yaml to plan.
    rejected
        List the dropped layouts too, each with its reason.
    """
    from tuner.cli.plan import plan_space

    return plan_space(space, with_rejected=rejected, as_json=json)


@app.command
def explain(space: Path, *layout: str, batch: str | None = None, json: Json = False) -> int:
    """Show where one layout's time and memory go, term by term, with formula and source.

    Parameters
    ----------
    space
        The space.yaml it belongs to.
    layout
        As tune prints it, for example tp2 pp1 dp4 zero0 mb2; default: the fastest predicted.
    batch
        Tokens per optimizer step; default: where the layout does most tokens per second.
    """
    from tuner.cli.plan import explain_layout

    return explain_layout(space, " ".join(layout) if layout else None, batch=batch, as_json=json)


@app.command
def report(
    study: Study = None,
    *,
    out: Out = None,
    json: Json = False,
    html: Annotated[bool, Parameter(negative=(), help="Write report.html anew and say where.")] = False,
    md: Annotated[bool, Parameter(negative=(), help="Markdown on stdout.")] = False,
) -> int:
    """Tell what a study found: on the terminal, as JSON, as Markdown or as one HTML file."""
    from tuner.cli.report import report_study

    return report_study(study, out=out, as_json=json, as_html=html, as_md=md)


@app.command
def doctor(*, json: Json = False) -> int:
    """Look for what would make trials fail here: versions that do not fit, devices, shared memory, PATH."""
    from tuner.cli.report import report_health

    return report_health(as_json=json)


def run_app(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code. Mistakes of the user end in one message, ours in a traceback."""
    from tuner.cli.render import complain
    from tuner.cli.run import explained

    try:
        result = app(sys.argv[1:] if argv is None else list(argv), exit_on_error=False, print_error=False)
        return int(result) if isinstance(result, int) else Exit.DONE
    except CycloptsError as error:
        complain(f"{error}\n  -> tune --help, or tune VERB --help, lists what there is")
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:
        known = explained(error)
        if known is None:
            raise
        complain(known[1])
        return known[0]
