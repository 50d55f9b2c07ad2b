"""Each mistake in a space file: the key it is reported under, what is said and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuner.space.errors import SpaceError

ErrorOf = Callable[..., SpaceError]


def recipe(form: str) -> dict[str, str]:
    return {"hyperparameters": f"hyperparameters: {{batch_tokens: 1Ki, {form}}}"}


def batches(form: str) -> dict[str, str]:
    return {"hyperparameters": f"hyperparameters: {{batch_tokens: {form}}}"}


@pytest.mark.parametrize(
    "sections, key, said, step",
    [
        ({"extra": "layotu: {tp: 1}"}, "layotu", "unknown key", 'did you mean "layout"'),
        ({"layout": "layout: {micro_bacth: 1}"}, "layout.micro_bacth", "unknown key", '"micro_batch"'),
        ({"budget": "budget: {trial: {token: 1M}}"}, "budget.trial.token", "unknown key", '"tokens"'),
        (
            {"model": "model: {layers: 2, hidden: 64, head: 2, heads: 2, vocab: 300}"},
            "model.head",
            "unknown key",
            "heads",
        ),
        ({"layout": "layout: {tp: {low: 1, hihg: 4, high: 4}}"}, "layout.tp.hihg", "unknown key", '"high"'),
        ({"version": None}, "version", "missing", "version: 1"),
        ({"version": "version: 2"}, "version", "out of range", "from 1 to 1"),
        ({"data": None}, "data", "missing", "sequence_length"),
        ({"data": "data: {tokens: 1M}"}, "data", '"sequence_length" is missing', "sequence_length"),
        ({"data": "data:"}, "data", "no value", "remove the key"),
        ({"layout": "layout: [tp, pp]"}, "layout", "expected a mapping, got a list", "tp"),
        ({"layout": "layout: {tp: two}"}, "layout.tp", "expected a number", "number"),
        ({"layout": "layout: {tp: '2'}"}, "layout.tp", "expected a number", "remove the quotes"),
        ({"layout": "layout: {tp: [1, [2]]}"}, "layout.tp[1]", "got a list", "number"),
        ({"layout": "layout: {tp: [1, 2.5]}"}, "layout.tp[1]", "not a whole number", "whole"),
        ({"layout": "layout: {tp: 0}"}, "layout.tp", "out of range", "from 1 to"),
        ({"layout": "layout: {tp: []}"}, "layout.tp", "empty list", "at least one"),
        ({"layout": "layout: {zero: 4}"}, "layout.zero", "out of range", "from 0 to 3"),
        ({"layout": "layout: {recompute: partial}"}, "layout.recompute", "unknown recompute", "selective"),
        ({"layout": "layout: {ep: 2}"}, "layout.ep", "only dense models", "ep: 1"),
        ({"layout": "layout: {dp: all}"}, "layout.dp", "unknown dp", "rest"),
        ({"layout": "layout: {require: [tpp == 1]}"}, "layout.require[0]", "unknown name", '"tp"'),
        (
            {"layout": "layout: {tp: {low: 1, high: 5000}, pp: {low: 1, high: 5000}}"},
            "layout",
            "layouts to enumerate",
            "1000000",
        ),
        ({"model": "model: llama-3-8"}, "model", "unknown model", '"llama-3-8b"'),
        ({"model": "model: ./nope.json"}, "model", "there is no", "relative to this file"),
        ({"model": "model: {layers: 2, hidden: 65, heads: 2, vocab: 300}"}, "model.heads", "65 % 2 = 1", "head_dim"),
        (
            {"model": "model: {layers: 2, hidden: 64, heads: 4, kv_heads: 3, vocab: 300}"},
            "model.kv_heads",
            "4 % 3 = 1",
            "key",
        ),
        ({"model": "model: {layers: 2, hidden: 64, heads: 4, vocab: 64}"}, "model.vocab", "corpus is bytes", "256"),
        ({"cluster": "cluster: {device: h100-sxm-80gbb}"}, "cluster.device", "unknown device", '"h100-sxm-80gb"'),
        ({"cluster": "cluster: {device: this-machine}"}, "cluster.device", "cannot be measured", "preset"),
        ({"cluster": "cluster: {device: this-machine, nodes: 2}"}, "cluster.nodes", "one node", "nodes: 1"),
        ({"cluster": "cluster: {device: h100-sxm-80gb, memory: 80}"}, "cluster.memory", "no unit", "6 GiB"),
        ({"cluster": "cluster: {device: h100-sxm-80gb, memory: 90 GiB}"}, "cluster.memory", "more than", "write less"),
        (
            {"cluster": "cluster: {device: h100-sxm-80gb, memory_reserve: 90 GiB}"},
            "cluster.memory_reserve",
            "nothing is left",
            "kept",
        ),
        (
            {"cluster": "cluster: {device: h100-sxm-80gb, inter_node: 400 Gbit/s}"},
            "cluster.inter_node",
            "bytes per second",
            "50 GB/s",
        ),
        (
            {"data": "data: {sequence_length: 256}"},
            "data.sequence_length",
            "longer than the 128 learned positions",
            "rotary",
        ),
        (
            {"hyperparameters": "hyperparameters: {batch_tokens: [1024, 1000]}"},
            "hyperparameters.batch_tokens[1]",
            "1000 % 128",
            "896 and 1024",
        ),
        (
            {"hyperparameters": "hyperparameters: {batch_tokens: 100}"},
            "hyperparameters.batch_tokens",
            "100 % 128",
            "nearest: 128",
        ),
        (recipe("schedule: cosin"), "hyperparameters.schedule", "unknown", '"cosine"'),
        (recipe("schedule: {low: 1, high: 2}"), "hyperparameters.schedule", "mapping", "list"),
        (recipe("optimizer: muon"), "hyperparameters.optimizer", "unknown", "adamw"),
        (recipe("precision: [fp32, bf16]"), "hyperparameters.precision", "one precision", "fp32"),
        (recipe("warmup: {low: 0.1, high: 50}"), "hyperparameters.warmup", "fraction", "steps"),
        (recipe("warmup: 10.5"), "hyperparameters.warmup", "not whole", "whole"),
        (recipe("learning_rate: 0"), "hyperparameters.learning_rate", "not above 0", "above 0"),
        (recipe("learning_rate: .inf"), "hyperparameters.learning_rate", "not finite", "finite"),
        (
            {"objective": "objective: {minimize: time_to_target, target: 1}"},
            "objective.minimize",
            "not available in this version",
            "time_to_loss",
        ),
        (
            {"objective": "objective: {minimize: cost_to_loss}"},
            "objective.minimize",
            "not available in this version",
            "time_to_loss",
        ),
        (
            {"objective": "objective: {minimize: step_time, target_loss: 3}"},
            "objective.target_loss",
            "no target loss",
            "remove",
        ),
        ({"objective": "objective: {target_loss: -1}"}, "objective.target_loss", "above 0", "auto"),
        (
            {"budget": "budget: {device_hours: 10}"},
            "budget.device_hours",
            "not available in this version",
            "wall_clock",
        ),
        ({"budget": "budget: {money: 10}"}, "budget.money", "not available in this version", "wall_clock"),
        ({"budget": "budget: {wall_clock: 600}"}, "budget.wall_clock", "no unit", "10 min"),
        (
            {"budget": "budget: {wall_clock: 1 min, trial: {wall_clock: 2 min}}"},
            "budget.trial.wall_clock",
            "longer than the budget",
            "shorten",
        ),
        ({"budget": "budget: {trial: {tokens: 1M}}"}, "budget.trial.tokens", "more than the whole run", "data.tokens"),
        ({"budget": "budget: {trial: {tokens: 1500}}"}, "budget.trial.tokens", "less than one step", "raise"),
        ({"search": "search: {sampler: bayes}"}, "search.sampler", "unknown sampler", "factorised"),
        ({"search": "search: {shortlist: 0}"}, "search.shortlist", "out of range", "from 1 to"),
        (
            {"trials": "trials: {adapter: deepspeed}"},
            "trials.adapter",
            "adapter deepspeed is not available in this version",
            "available: native",
        ),
        (
            {"trials": "trials: {launcher: ray}"},
            "trials.launcher",
            "launcher ray is not available in this version",
            "available: local",
        ),
        ({"name": "name: ../escape"}, "name", "cannot name a folder", "letters"),
    ],
)
def test_bad_input_is_named_with_its_place(
    error_of: ErrorOf, sections: dict[str, str | None], key: str, said: str, step: str
) -> None:
    error = error_of(**sections)
    problem = next(p for p in error.problems if p.key == key)
    assert said in problem.message
    assert step in problem.next_step
    if problem.message != "missing":
        (changed,) = sections.values()
        assert problem.source_line == changed
        assert 1 <= problem.column <= len(problem.source_line)
    assert f"{len(error.problems)} problems" in error.render() or len(error.problems) == 1


@pytest.mark.parametrize(
    "sections, key",
    [
        ({"layout": "layout: {tp: {low: one, high: 4}}"}, "layout.tp.low"),
        ({"layout": "layout: {tp: {low: 0, high: 4}}"}, "layout.tp.low"),
        ({"layout": "layout: {zero: {low: 0, high: 9}}"}, "layout.zero.high"),
        (recipe("learning_rate: {low: '1e-4', high: 1e-3}"), "hyperparameters.learning_rate.low"),
        (recipe("learning_rate: {low: 1e-4, high: 1e-3, log: maybe}"), "hyperparameters.learning_rate.log"),
        (
            batches("{low: 1Ki, high: lots}"),
            "hyperparameters.batch_tokens.high",
        ),
        (
            batches("{low: 1Ki, high: 2Ki, step: 100}"),
            "hyperparameters.batch_tokens.step",
        ),
    ],
)
def test_bounds_are_checked_like_values(error_of: ErrorOf, sections: dict[str, str], key: str) -> None:
    assert [p.key for p in error_of(**sections).problems] == [key]
