"""tune report and tune doctor."""

from __future__ import annotations

from pathlib import Path

from tuner.cli.doctor import diagnose
from tuner.cli.errors import Exit
from tuner.cli.pages import health_page
from tuner.cli.render import show, show_json, show_raw
from tuner.records import SCHEMA_VERSION
from tuner.report.html import write_html
from tuner.report.md import report_md
from tuner.report.text import report_page
from tuner.report.view import StudyView
from tuner.tracking.run_directory import RunDirectory


def report_study(study: str | None, *, out: Path | None, as_json: bool, as_html: bool, as_md: bool) -> int:
    run = RunDirectory.open(study, out=out)
    view = StudyView.of(run)
    if as_html:
        show(f"written: {write_html(view, run.report_path)}")
    if as_json:
        show_json(view.summary)
    elif as_md:
        show_raw(report_md(view))
    elif not as_html:
        show(*report_page(view))
    return Exit.DONE


def report_health(*, as_json: bool) -> int:
    findings = diagnose()
    has_fault = any(f.level == "fault" for f in findings)
    if as_json:
        show_json(
            {
                "schema_version": SCHEMA_VERSION,
                "healthy": not has_fault,
                "findings": [f.to_dict() for f in findings],
            }
        )
    else:
        show(*health_page(findings))
    return Exit.DOCTOR_FAULT if has_fault else Exit.DONE
