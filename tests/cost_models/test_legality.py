"""Rules beyond the published cases: each names itself and explains itself with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models import Cluster, Framework, Layout, Layouts, ModelShape, Recompute, Workload
from cost_models.legality import BATCH_RULES, RULES, batch_violations, explain_violation, violations

RUN = Workload(sequence_length=512, batch_sequences=8)


def broken(shape: ModelShape, cluster: Cluster, layout: Layout, framework: Framework = Framework.NATIVE) -> set[str]:
    found = violations(shape, cluster, framework, Layouts.of([layout]))
    return {name for name, rows in found.items() if rows[0]}


@pytest.mark.parametrize(
    "layout,rules",
    [
        (Layout(dp=16), set()),
        (Layout(dp=8), {"world_size"}),
        (Layout(dp=16, zero=1), {"zero1_native"}),
        (Layout(tp=4, pp=4, zero=2), {"zero_needs_dp"}),
        (Layout(dp=8, cp=2), {"cp_native"}),
        (Layout(dp=16, ep=2), {"ep_needs_experts"}),
        (Layout(tp=16), {"kv_heads_divide_tp"}),
        (Layout(pp=16, recompute=Recompute.FULL), set()),
    ],
)
def test_native_rules(llama: ModelShape, h100s: Cluster, layout: Layout, rules: set[str]) -> None:
    assert broken(llama, h100s, layout) == rules


def test_vocabulary_is_not_padded_natively(llama: ModelShape, h100s: Cluster) -> None:
    shape = replace(llama, vocab=50257)
    assert broken(shape, h100s, Layout(tp=2, dp=8)) == {"vocab_divides_tp"}
    assert broken(shape, h100s, Layout(tp=2, dp=8), Framework.MEGATRON) == set()


def test_batch_rules(llama: ModelShape, h100s: Cluster) -> None:
    rows = [Layout(pp=4, dp=4), Layout(pp=2, dp=4), Layout(dp=3), Layout(recompute=Recompute.SELECTIVE)]
    found = batch_violations(RUN, Layouts.of(rows))
    assert found["pipeline_needs_micro_batches"].tolist() == [True, False, False, False]
    assert found["batch_divides"].tolist() == [False, False, True, False]
    assert found["selective_native"].tolist() == [False, False, False, True]
    unfused = replace(RUN, flash_attention=False)
    assert not batch_violations(unfused, Layouts.of(rows))["selective_native"].any()


@pytest.mark.parametrize("rule", [*RULES, *BATCH_RULES])
def test_every_rule_explains_itself(llama: ModelShape, h100s: Cluster, rule: str) -> None:
    layout = Layout(dp=3, tp=3, pp=5, cp=3, ep=2, zero=2)
    said = explain_violation(rule, llama, h100s, layout, RUN)
    assert len(said) > 20
    assert "\n" not in said


def test_numbers_are_in_the_explanations(llama: ModelShape, h100s: Cluster) -> None:
    assert "dp 3 x tp 1 x pp 1 x cp 1 = 3 devices, but the cluster has 16" in explain_violation(
        "world_size", llama, h100s, Layout(dp=3)
    )
    with pytest.raises(ValueError, match="pass the workload"):
        explain_violation("batch_divides", llama, h100s, Layout())
    with pytest.raises(ValueError, match="unknown rule 'x'; known: world_size"):
        explain_violation("x", llama, h100s, Layout())
