"""The sections of a space file as pydantic models: their keys, types and defaults. With ``fields``, all pydantic here.

A model says what one section may hold and what it is when left out; what two sections must agree on is in ``build``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag

from tuner.space.fields import (
    BatchTokens,
    Boolean,
    Bytes,
    BytesPerS,
    Count,
    Degree,
    Number,
    Optimizer,
    PrecisionWord,
    Real,
    RecomputeWord,
    Schedule,
    Seconds,
    Section,
    Seed,
    SequenceLength,
    Size,
    Text,
    Tokens,
    Words,
    ZeroStage,
    form_of,
    mistake,
    real,
    whole,
    word,
)
from tuner.space.quantities import shown
from tuner.space.search_space import Minimize


class InlineModel(Section):
    """A decoder by its numbers. Left out: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden."""

    name: Text = "inline"
    layers: Annotated[int, BeforeValidator(whole(1, 10_000))]
    hidden: Size
    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn: Size | None = None
    vocab: Annotated[int, BeforeValidator(whole(1, 2**24))]
    gated: Boolean = False
    tied: Boolean = False
    positions: Annotated[int, BeforeValidator(lambda v: 0 if v == "rotary" else whole(0, 2**24)(v))] = 0
    """Rows of a learned position table, or ``rotary``."""
    norm: Annotated[str, word("norm", "layer", "rms")] = "layer"
    attention_bias: Boolean = False
    output_bias: Boolean = False
    mlp_bias: Boolean = False
    qk_norm: Boolean = False


class Head(Section):
    """The keys that are no section. ``name`` is the file's name when left out."""

    version: Annotated[int, BeforeValidator(whole(1, 1))]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = None
    model: Annotated[Annotated[Text, Tag("fixed")] | Annotated[InlineModel, Tag("range")], Discriminator(form_of)]


class LinkSpec(Section):
    bandwidth: BytesPerS
    latency: Seconds | None = None


Link = Annotated[Annotated[BytesPerS, Tag("fixed")] | Annotated[LinkSpec, Tag("range")], Discriminator(form_of)]


class ClusterSpec(Section):
    """Figures left out are the device preset's (or measured, for this-machine); nothing is reserved unless said.

    ``devices_per_node`` left out is what such a node usually has, and 1 for this-machine.
    """

    device: Text
    nodes: Degree = 1
    devices_per_node: Degree | None = None
    memory: Bytes | None = None
    memory_reserve: Bytes | None = None
    framework_base: Bytes | None = None
    intra_node: Link | None = None
    inter_node: Link | None = None
    price_per_device_hour: Annotated[float, BeforeValidator(real), Field(gt=0)] | None = None


class DataSpecForm(Section):
    """``source`` left out: the bundled corpus; ``tokens`` left out: 20 per parameter."""

    source: Text | None = None
    sequence_length: SequenceLength
    tokens: Tokens | None = None


def _strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


class LayoutSpec(Section):
    """Every degree is 1 when left out, ``zero`` 0, ``recompute`` none; ``dp`` takes the devices that remain."""

    tp: Number[Degree] = 1
    pp: Number[Degree] = 1
    cp: Number[Degree] = 1
    ep: Number[Degree] = 1
    dp: Annotated[
        Annotated[str, word("dp", "rest"), Tag("rest")] | Annotated[Number[Degree], Tag("number")],
        Discriminator(lambda v: "rest" if isinstance(v, str) else "number"),
    ] = "rest"
    zero: Number[ZeroStage] = 0
    micro_batch: Number[Degree] = 1
    recompute: Words[RecomputeWord] = "none"
    require: Annotated[list[Text], BeforeValidator(_strings)] = Field(default_factory=list)


class HyperparameterSpec(Section):
    """Left out: learning_rate 1e-4 to 1e-2 (log), warmup 0.05 of the horizon, weight_decay 0.1, cosine, clip_norm 1,
    adamw; precision bf16, or fp32 on a CPU."""

    batch_tokens: Number[BatchTokens]
    learning_rate: Number[Real] | None = None
    warmup: Number[Real] = 0.05
    weight_decay: Number[Real] = 0.1
    schedule: Words[Schedule] = "cosine"
    clip_norm: Number[Real] = 1.0
    precision: Words[PrecisionWord] | None = None
    optimizer: Words[Optimizer] = "adamw"


_LATER_METRIC = {
    "time_to_target": "minimise time_to_loss with a target_loss instead",
    "cost_to_loss": "minimise time_to_loss: on a fixed cluster the cheapest config is the fastest",
    "loss_at_budget": "minimise time_to_loss with a target_loss instead",
}


def _goes_with_time_to_target(_: object) -> object:
    raise mistake("goes with time_to_target, which is not available in this version", "remove it")


Later = Annotated[None, BeforeValidator(_goes_with_time_to_target)]


def _target(value: object) -> float | None:
    if value == "auto":
        return None
    if isinstance(value, str) or real(value) <= 0:
        raise mistake(f"expected a loss above 0 or auto, got {shown(value)}", "write a number such as 3.2, or auto")
    return real(value)


class ObjectiveSpec(Section):
    """Left out: time_to_loss, with the target chosen from the first trials."""

    minimize: Annotated[str, word("objective", *Minimize, later=_LATER_METRIC)] = "time_to_loss"
    target_loss: Annotated[float | None, BeforeValidator(_target)] = None
    metric: Later = None
    target: Later = None
    direction: Later = None


class TrialBudget(Section):
    """Left out: 100 steps of the largest batch, and a quarter of the study's wall clock."""

    tokens: Tokens | None = None
    wall_clock: Seconds | None = None


class ConfirmBudget(Section):
    """``tokens`` left out: to the longest converge horizon or the target."""

    best: Count = 2
    seeds: Count = 2
    tokens: Tokens | None = None


def _later_budget(name: str) -> BeforeValidator:
    def refuse(_: object) -> object:
        raise mistake(f"a budget in {name} is not available in this version", "limit wall_clock or trials instead")

    return BeforeValidator(refuse)


class BudgetSpec(Section):
    """Left out: one hour of wall clock and any number of trials."""

    wall_clock: Seconds = 3600.0
    trials: Count | None = None
    trial: TrialBudget = TrialBudget()
    confirm: ConfirmBudget = ConfirmBudget()
    device_hours: Annotated[None, _later_budget("device_hours")] = None
    money: Annotated[None, _later_budget("money")] = None


class SearchSpec(Section):
    sampler: Annotated[str, word("sampler", "factorised", "tpe", "gp", "cmaes", "random", "grid")] = "factorised"
    shortlist: Count = 24
    seed: Seed = 0


_ADAPTERS = dict.fromkeys(("deepspeed", "megatron", "torchtitan", "accelerate", "nemo", "command"), "available: native")
_LAUNCHERS = dict.fromkeys(("torchrun", "ray", "slurm", "simulated", "replay"), "available: local")


class TrialsSpec(Section):
    adapter: Annotated[str, word("adapter", "native", later=_ADAPTERS)] = "native"
    launcher: Annotated[str, word("launcher", "local", later=_LAUNCHERS)] = "local"


class TrackingSpec(Section):
    """``experiment`` left out: the study's name."""

    mlflow: Text = "sqlite:///mlflow.db"
    experiment: Text | None = None


SECTIONS: dict[str, type[Section]] = {
    "cluster": ClusterSpec,
    "data": DataSpecForm,
    "layout": LayoutSpec,
    "hyperparameters": HyperparameterSpec,
    "objective": ObjectiveSpec,
    "budget": BudgetSpec,
    "search": SearchSpec,
    "trials": TrialsSpec,
    "tracking": TrackingSpec,
}
REQUIRED = ("version", "model", "cluster", "data", "hyperparameters")
