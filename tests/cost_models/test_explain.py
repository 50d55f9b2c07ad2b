"""explain() and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cost_models import Cluster, Layout, Layouts, ModelShape, Workload, estimate, explain

RUN = Workload(sequence_length=2048, batch_sequences=64)


def test_terms_cover_time_and_memory(llama: ModelShape, h100s: Cluster) -> None:
    cost = estimate(llama, h100s, RUN, Layout(dp=4, tp=2, pp=2, zero=2))
    terms = explain(cost)
    seconds = [t for t in terms if t.unit == "s"]
    held = [t for t in terms if t.unit == "bytes"]
    assert sum(t.value for t in seconds) == pytest.approx(cost.step_time_s)
    assert sum(t.value for t in held) == pytest.approx(cost.memory_bytes)
    assert sum(t.share for t in seconds) == pytest.approx(1)
    assert {t.name for t in seconds} == set(cost.time.to_dict())
    assert {t.name for t in held} == set(cost.memory.to_dict())
    assert all(t.formula and t.source for t in terms)
    assert seconds[0].name == cost.limited_by


def test_columns_are_explained_row_by_row(llama: ModelShape, h100s: Cluster) -> None:
    many = estimate(llama, h100s, RUN, Layouts.of([Layout(), Layout(dp=2)]))
    with pytest.raises(ValueError, match=r"has 2: pass estimate\.row"):
        explain(many)
    assert explain(many.row(1))


def test_import_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, cost_models\n"
        "from cost_models import estimate, explain, ModelShape, Calibration, presets\n"
        "import cost_models.estimate, cost_models.explain\n"
        "assert callable(cost_models.estimate) and callable(cost_models.explain)\n"
        "presets.model('gpt2'), presets.device('a10g')\n"
        "heavy = {'torch', 'ray', 'mlflow', 'optuna', 'deepspeed', 'pandas', 'pydantic', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_attribute_says_what_there_is() -> None:
    import cost_models

    with pytest.raises(AttributeError, match=r"it offers .*ModelShape"):
        cost_models.nonsense  # noqa: B018
