"""``model:`` of a space file, a preset's name, a config.json or a mapping of sizes, as a ModelShape."""

from __future__ import annotations

from pathlib import Path

from cost_models import presets
from cost_models.shape import ModelShape, Norm, UnsupportedModelError
from tuner.space.errors import did_you_mean
from tuner.space.schema import InlineModel
from tuner.space.source import Source


def build_model(source: Source, form: str | InlineModel, folder: Path) -> ModelShape | None:
    """None where it is wrong, with the problem noted. Paths are relative to the space file."""
    if isinstance(form, InlineModel):
        return _inline(source, form)
    if form.endswith(".json") or "/" in form or "\\" in form:
        return _from_config(source, folder / Path(form).expanduser())
    try:
        return presets.model(form)
    except ValueError:
        hint = did_you_mean(form, presets.model_names(), what="presets")
    source.problem_at(("model",), f'unknown model "{form}"', f"{hint}; or the path of a config.json")
    return None


def _from_config(source: Source, path: Path) -> ModelShape | None:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        source.problem_at(("model",), f"there is no {file}", "write a path relative to this file, or a preset's name")
        return None
    try:
        return ModelShape.from_hf_config(file)
    except UnsupportedModelError as error:
        source.problem_at(("model",), str(error), "choose a dense decoder, or give its sizes as a mapping")
    except (OSError, ValueError) as error:
        message, _, next_step = str(error).partition("; ")
        source.problem_at(("model",), message, next_step or "name a Hugging Face config.json")
    return None


def _inline(source: Source, form: InlineModel) -> ModelShape | None:
    if form.head_dim is None and form.hidden % form.heads:
        remainder = f"{form.hidden} % {form.heads} = {form.hidden % form.heads}"
        message = f"hidden {form.hidden} is not a multiple of heads {form.heads} ({remainder})"
        source.problem_at(("model", "heads"), message, "change one of them, or give head_dim")
        return None
    try:
        return ModelShape(
            name=form.name,
            num_layers=form.layers,
            hidden=form.hidden,
            num_heads=form.heads,
            num_kv_heads=form.kv_heads or form.heads,
            head_dim=form.head_dim or form.hidden // form.heads,
            ffn_hidden=form.ffn or 4 * form.hidden,
            vocab=form.vocab,
            gated_mlp=form.gated,
            tied_embeddings=form.tied,
            learned_positions=form.positions,
            norm=Norm(form.norm),
            attention_bias=form.attention_bias,
            output_bias=form.output_bias,
            mlp_bias=form.mlp_bias,
            qk_norm=form.qk_norm,
        )
    except ValueError as error:
        message, _, next_step = str(error).partition("; ")
        source.problem_at(("model", "kv_heads"), message, next_step or "change the sizes")
        return None
