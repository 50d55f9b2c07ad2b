"""The model on its own: its size, its seeds, and the parts that only some shapes have."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the native trial needs the [train] extra")

import torch

from cost_models.shape import ModelShape, Norm
from tuner.training.model import GPT, initialise, rotary_table, rotated

BASE = ModelShape(
    name="base", num_layers=2, hidden=16, num_heads=4, num_kv_heads=4, head_dim=4, ffn_hidden=24, vocab=40
)
SHAPES = {
    "plain": BASE,
    "gpt-2": replace(
        BASE, tied_embeddings=True, learned_positions=8, attention_bias=True, output_bias=True, mlp_bias=True
    ),
    "llama": replace(BASE, num_kv_heads=2, gated_mlp=True, norm=Norm.RMS),
    "qwen": replace(BASE, num_kv_heads=1, gated_mlp=True, norm=Norm.RMS, qk_norm=True, attention_bias=True),
    "wide heads": replace(BASE, head_dim=6, tied_embeddings=True),
    "gated with biases": replace(BASE, gated_mlp=True, mlp_bias=True, output_bias=True),
}


def whole(shape: ModelShape, seed: int = 0) -> GPT:
    model = GPT(shape, range(shape.num_layers))
    initialise(model, "", shape, seed)
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_number_what_the_shape_says(name: str) -> None:
    model = whole(SHAPES[name])
    assert sum(p.numel() for p in model.parameters()) == SHAPES[name].num_params


@pytest.mark.parametrize("name", SHAPES)
def test_no_token_sees_a_later_one(name: str) -> None:
    model = whole(SHAPES[name])
    tokens = torch.arange(8)[None] * 3
    changed = tokens.clone()
    changed[0, 5] = 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = whole(SHAPES[name])
    tokens = torch.arange(8)[None]
    torch.nn.functional.cross_entropy(model(tokens), tokens[0] + 1).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


def test_stages_have_the_weights_of_the_whole_model() -> None:
    shape = SHAPES["gpt-2"]
    model = whole(shape, seed=3)
    names = dict(model.named_parameters())
    for layers in (range(1), range(1, 2)):
        stage = GPT(shape, layers)
        initialise(stage, "", shape, 3)
        for name, parameter in stage.named_parameters():
            same = "embeddings.tokens.weight" if name == "head.projection.weight" else name
            assert torch.equal(parameter, names[same]), name
    first, last = GPT(shape, range(1)), GPT(shape, range(1, 2))
    initialise(first, "", shape, 3)
    initialise(last, "", shape, 3)
    tokens = torch.arange(8)[None]
    assert torch.equal(last(first(tokens)), model(tokens))


def test_seeds_and_names_give_different_weights() -> None:
    one, other = whole(BASE, seed=0), whole(BASE, seed=1)
    weights = [model.blocks[layer].mlp.up.weight for model in (one, other) for layer in "01"]
    assert len({round(float(w.detach().sum()), 6) for w in weights}) == 4


def test_recompute_changes_no_gradient() -> None:
    tokens = torch.arange(8)[None]
    gradients = []
    for recompute in ("none", "full"):
        model = GPT(BASE, range(2), recompute=recompute)
        initialise(model, "", BASE, 0)
        model(tokens).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_grouped_heads_are_the_full_ones_with_shared_keys() -> None:
    grouped = whole(replace(BASE, num_kv_heads=2))
    full = whole(BASE)
    with torch.no_grad():
        for layer in "01":
            few = grouped.blocks[layer].attention.qkv.weight.view(2, 4, 4, 16)
            many = torch.stack([torch.stack((g[q], g[2], g[3])) for g in few for q in (0, 1)])
            full.blocks[layer].attention.qkv.weight.copy_(many.reshape(48, 16))
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(full(tokens), grouped(tokens))


def test_rotation_keeps_lengths_and_sees_only_distance() -> None:
    torch.manual_seed(0)
    table = rotary_table(16, 8, torch.device("cpu"))
    query, key = torch.randn(1, 1, 1, 8).expand(1, 16, 1, 8), torch.randn(1, 1, 1, 8).expand(1, 16, 1, 8)
    q, k = rotated(query, table), rotated(key, table)
    torch.testing.assert_close(q.norm(dim=-1), query.norm(dim=-1))
    dots = torch.einsum("bihd,bjhd->ij", q, k)
    torch.testing.assert_close(dots[3, 1], dots[12, 10])
    assert not torch.allclose(dots[3, 1], dots[3, 2])


@pytest.mark.parametrize(
    "change,words", [({"norms_per_layer": 4}, "norms_per_layer is 4"), ({"head_dim": 5}, "even head_dim, got 5")]
)
def test_unsupported_shapes_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GPT(replace(BASE, **change), range(2))
