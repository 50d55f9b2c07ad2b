"""Where a search starts: a scaling law for the learning rate and the batch at a given horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Power laws in non-embedding parameters ``N`` and training tokens ``D``.

    ``learning_rate = lr_scale N^lr_parameters D^lr_tokens`` and ``batch = batch_scale D^batch_tokens_exponent``.
    The defaults are the Step Law [arXiv:2503.04715]: ``1.79 N^-0.713 D^0.307`` and ``0.58 D^0.571`` tokens, fitted
    on AdamW pre-training under a cosine schedule, 60 M to 1 B parameters; for mixtures of experts ``N`` is the
    active parameters. A prior, not a truth: what is far from its fitting range is far from its evidence.
    Leaves out: weight decay, warmup, architecture, tokenizer, and any dependence of the batch on ``N``.
    """

    num_parameters: float
    lr_scale: float = 1.79
    lr_parameters: float = -0.713
    lr_tokens: float = 0.307
    batch_scale: float = 0.58
    batch_tokens_exponent: float = 0.571

    def __post_init__(self) -> None:
        if not (math.isfinite(self.num_parameters) and self.num_parameters > 0):
            raise ValueError(
                f"num_parameters={self.num_parameters} must be above 0: give the model's non-embedding parameters"
            )

    def learning_rate(self, horizon_tokens: float) -> float:
        """Peak learning rate for a run annealed over ``horizon_tokens``."""
        return (
            self.lr_scale * math.pow(self.num_parameters, self.lr_parameters) * math.pow(horizon_tokens, self.lr_tokens)
        )

    def batch_tokens(self, horizon_tokens: float) -> float:
        """Tokens per optimizer step for a run of ``horizon_tokens``."""
        return self.batch_scale * math.pow(horizon_tokens, self.batch_tokens_exponent)
