"""Terminal, Markdown and HTML, at every stage of a study."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tuner.outcome import StudyStatus
from tuner.report.html import report_html, write_html
from tuner.report.md import report_md
from tuner.report.text import plan_page, report_page, result_page
from tuner.report.view import StudyView
from tuner.tracking.run_directory import RunDirectory
from tuner.tracking.study_record import TrackedAt

STAGES = ("finished", "running", "empty", "failed")


def shown(parts: Any, width: int = 140) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


class Page(HTMLParser):
    """What a page would load, its text, and its embedded figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.figures: dict[str, Any] = {}
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "poster")]
        if tag in ("script", "style"):
            self._script = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.words.append(data)
        elif self._script.get("type") == "application/json":
            self.figures[str(self._script["id"])] = json.loads(data)


# -- terminal ------------------------------------------------------------------------------------
def test_plan_page_shows_the_funnel_the_rules_and_error_bars(stages: Any) -> None:
    text = shown(plan_page(stages.finished.plan))
    assert "48 layouts -> 12 are not legal -> 14 do not fit in 600 MiB -> 22 feasible -> 3 to try" in text
    assert re.search(r"14 +memory", text)
    assert "227 ms ± 15 %" in text
    assert "420 MiB ± 42.0 MiB ▇▇▇▇▇▇▁▁" in text
    assert "pipeline bubble" in text
    assert "assumed: the link's latency is a guess" in text


def test_result_has_the_launch_numbers_and_what_the_claim_rests_on(stages: Any) -> None:
    text = shown(result_page(stages.finished))
    for words in (
        r"time to loss +33\.6 s +54\.4 s \(extrapolated\)",
        r"90 % interval +31\.6 s to 36\.0 s",
        r"learning rate +2e-3",
        r"micro-batch +2 sequences",
        r"1\.62 x as fast to the target as the default",
        r"extrapolated: the default did not reach",
        r"predicted step time was off by 8 % \(median of n = 6",
        r"1 +oom +2 +RuntimeError: \[enforce fail",
        r"mlflow ui --backend-store-uri sqlite:////data/mlflow\.db",
        r"report\.html",
    ):
        assert re.search(words, text), f"{words}\n{text}"


@pytest.mark.parametrize(
    "stage, words",
    [
        ("running", "is running: 4 trials ended so far"),
        ("empty", "no trial has ended"),
        ("failed", "of 1 trial, 1 failed"),
    ],
)
def test_every_stage_says_what_it_is(stages: Any, stage: str, words: str) -> None:
    assert words in shown(report_page(getattr(stages, stage)))


def test_no_claim_of_confirmation_for_an_extrapolated_winner(stages: Any) -> None:
    outcome = stages.finished.outcome
    guessed = replace(outcome, winner=replace(outcome.winner, extrapolated=True))
    view = replace(stages.finished, outcome=guessed)
    assert "is an extrapolation" in view.headline()
    assert "was confirmed" not in view.headline()


# -- html ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", STAGES)
def test_html_loads_nothing_from_anywhere(stages: Any, stage: str) -> None:
    pytest.importorskip("plotly")
    text = report_html(getattr(stages, stage))
    page = Page(text)
    assert [load for load in page.loads if load != "data:,"] == []
    assert "@import" not in text.split("</style>")[0]
    assert "url(" not in text.split("</style>")[0]
    assert text.count("plotly.js v") <= 1, "the library is inside once"


def test_html_shows_every_trial_figure_and_failure(stages: Any) -> None:
    pytest.importorskip("plotly")
    page = Page(report_html(stages.finished))
    assert set(page.figures) == {"data-funnel", "data-time_to_loss", "data-curves", "data-predicted"}
    words = "".join(page.words)
    for text in (
        "finished",
        "33.6 s",
        "1.62 x",
        "failed: oom",
        "failed: nan",
        "a lower learning rate",
        "sqlite:////data",
    ):
        assert text in words
    curves = [trace["name"] for trace in page.figures["data-curves"]["data"]]
    assert len(curves) == 8
    assert "06 · lr 8e-3 · seed 0 · nan" in curves


def test_html_escapes_what_users_and_trials_say(stages: Any) -> None:
    pytest.importorskip("plotly")
    results = list(stages.finished.results)
    results[9] = replace(results[9], spec=replace(results[9].spec, label="</script><img src=x onerror=alert(1)>"))
    page = Page(report_html(replace(stages.finished, name="<b>bold</b>", results=tuple(results))))
    assert "b" not in page.tags[: page.tags.index("h1") + 2]
    assert "img" not in page.tags
    assert "gpt-small <b>" in "".join(page.words)
    assert any("</script>" in trace.get("name", "") for trace in page.figures["data-curves"]["data"])


@pytest.mark.parametrize("stage, words", [("empty", "No trial has ended."), ("failed", "There is none in this study.")])
def test_html_of_nothing_says_so(stages: Any, stage: str, words: str) -> None:
    pytest.importorskip("plotly")
    page = Page(report_html(getattr(stages, stage)))
    assert words in "".join(page.words)
    assert "data-curves" not in page.figures


def test_what_is_not_finite_is_drawn_nowhere(stages: Any) -> None:
    pytest.importorskip("plotly")
    from tuner.report.figures import curves_figure

    figure = curves_figure(stages.finished.results, math.nan)
    assert figure is not None
    losses = [y for trace in figure.data for y in trace.y]
    assert losses
    assert all(math.isfinite(y) for y in losses)


# -- markdown ------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", STAGES)
def test_markdown_tables_are_whole(stages: Any, stage: str) -> None:
    text = report_md(getattr(stages, stage))
    assert text.startswith(f"# made-up ({getattr(stages, stage).status.value})")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert tables
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    assert "<b>" not in text


# -- from disk -----------------------------------------------------------------------------------
def test_a_report_is_written_from_the_folder_alone(stages: Any, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    run = RunDirectory.create("made-up", tmp_path, "version: 1\n")
    assert "no trial has ended" in shown(report_page(StudyView.of(run)))
    run.write_funnel(stages.finished.funnel)
    for result in stages.finished.results:
        run.append_result(result)
    run.write_outcome(stages.finished.outcome)
    run.update_study(status=StudyStatus.FINISHED, elapsed_s=231.0)
    run.write_tracked(TrackedAt(mlflow_uri="sqlite:////data/mlflow.db", experiment_id="1", parent_run_id="0" * 32))
    with run.record_path.open("ab") as file:
        file.write(b'{"spec"')
    view = StudyView.of(RunDirectory.open(run.path))
    expected, found = stages.finished.summary, view.summary
    assert found["trials"] == expected["trials"]
    assert found["winner"] == expected["winner"]
    assert view.mlflow_hint[0].endswith("sqlite:////data/mlflow.db")
    words = "".join(Page(write_html(view, run.report_path).read_text()).words)
    assert "cut off by a crash" in words
    assert "1.62 x" in words
