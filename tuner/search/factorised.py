"""FactorisedSampler: a law with an uncertain centre, as an Optuna sampler. Imports Optuna; import it late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from cost_models.convergence import Law
from tuner.search.axes import Axes, Params
from tuner.search.bowl import CAP, NOISE, Array, Belief, believe

FINAL_LOSS = "final_loss"
TOKENS = "tokens"
DIVERGED = "diverged"
STOPPED = "stopped"
LOG_TOKENS = "log_tokens_to_target"
"""Names of the trial's user attributes that are read."""

USUAL_SLOPE = 12.0
"""Log-tokens to a target per nat of final loss, before trials say: 0.01 nat is worth 8 to 16 % of the tokens."""
SLOPE_TRUST = 0.02
STOPPED_EXCESS = 0.1
NUM_CANDIDATES = 500
NUM_BOWLS = 250
"""Of the posterior's particles, over which the improvement is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The study's trials, as far as they teach."""

    recipes: list[Params]
    losses: list[float]
    tokens: list[float]
    noise: list[float]
    log_tokens: list[float | None]
    diverged: list[Params]
    diverged_tokens: list[float]
    pending: list[Params]
    known: list[Params]
    """Recipes not to be proposed again: all but those whose trial crashed once."""
    crashed: list[Params]

    @property
    def lowest_diverged_rate(self) -> float:
        return min((float(p["learning_rate"]) for p in self.diverged if "learning_rate" in p), default=math.inf)


class FactorisedSampler(BaseSampler):
    """Proposes recipes by expected improvement of ``log(tokens_to_loss(recipe) x seconds_per_token(batch))``.

    Final losses follow a capped bowl in log learning rate, log batch, log warmup, whose centre has a heavy-tailed
    prior at the law's point for the horizon (bowl.py). The improvement is averaged over the posterior's bowls;
    each bowl takes its own prediction for trials still running (a constant liar per bowl). Tokens follow from
    losses by one slope, fitted where trials carry ``log_tokens_to_target``.

    It reads user attributes of the study's trials: ``final_loss``, ``tokens`` (the horizon it was annealed
    over; default: the sampler's), ``diverged``, and where there: ``stopped``, ``log_tokens_to_target``. A trial
    with neither a loss nor a divergence teaches nothing. The objective's values are not read, so that prices may be
    corrected (``set_prices``) after trials have finished.

    The first proposal is the law's. No recipe is proposed twice, and none with a learning rate at or above the lowest
    that diverged, unless the space has nothing else. Equal seeds and studies give equal proposals.
    """

    def __init__(
        self,
        *,
        law: Law,
        horizon_tokens: float,
        prices: Mapping[int, float] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
        fixed: Params | None = None,
        seed: int = 0,
    ) -> None:
        if not horizon_tokens > 0:
            raise ValueError(f"horizon_tokens={horizon_tokens} must be above 0")
        self._law, self._horizon_tokens = law, float(horizon_tokens)
        self._distributions = dict(distributions) if distributions is not None else None
        self._fixed = dict(fixed or {})
        self._seed = seed
        self._prices: dict[int, float] = {}
        self.set_prices(prices or {})

    def set_prices(self, prices: Mapping[int, float]) -> None:
        """Seconds per token by batch in tokens; batches between are interpolated, and without prices all cost alike."""
        bad = {b: p for b, p in prices.items() if not (math.isfinite(p) and p > 0)}
        if bad:
            raise ValueError(f"seconds per token must be above 0, got {bad}: leave out batches without a measurement")
        self._prices = {int(b): float(p) for b, p in sorted(prices.items())}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._distributions is not None:
            return {n: d for n, d in self._distributions.items() if not d.single()}
        shared = intersection_search_space(study.get_trials(deepcopy=False))
        return {n: d for n, d in shared.items() if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        axes = self._axes(search_space)
        history = self._history(study, trial, axes)
        law_point = axes.law_point()
        if not history.losses and not history.diverged and law_point not in history.known:
            return law_point
        rng = np.random.default_rng([self._seed, trial.number])
        belief = self._belief(axes, history, rng)
        return dict(self._best(axes, history, belief, rng))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The law's value: what a parameter starts at while the study's space is not known yet."""
        if param_distribution.single():
            return next(iter(self._axes({param_name: param_distribution}).fixed.values()))
        fixed = {**self._fixed, **trial.params}
        return Axes.of({param_name: param_distribution}, fixed, self._law, self._horizon_tokens).law_point()[param_name]

    def admits(self, study: Study, params: Params) -> bool:
        """Whether the divergence guard lets ``params`` be run."""
        rates = [
            float(t.params.get("learning_rate", math.inf))
            for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
            if t.user_attrs.get(DIVERGED)
        ]
        return float(params.get("learning_rate", -math.inf)) < min(rates, default=math.inf)

    def _axes(self, distributions: Mapping[str, BaseDistribution]) -> Axes:
        return Axes.of(distributions, self._fixed, self._law, self._horizon_tokens)

    def _history(self, study: Study, trial: FrozenTrial, axes: Axes) -> _History:
        h = _History(
            recipes=[], losses=[], tokens=[], noise=[], log_tokens=[],
            diverged=[], diverged_tokens=[], pending=[], known=[], crashed=[],
        )  # fmt: skip
        names = {a.name for a in axes.axes}
        for other in study.get_trials(deepcopy=False):
            fixed = other.system_attrs.get("fixed_params", {})
            params = {**{n: v for n, v in fixed.items() if n in names}, **other.params}
            if other.number == trial.number or not names <= set(params):
                continue
            recipe = {n: params[n] for n in sorted(names)}
            self._learn(h, other, recipe)
        return h

    def _learn(self, h: _History, trial: FrozenTrial, recipe: Params) -> None:
        attrs = trial.user_attrs
        loss, tokens = attrs.get(FINAL_LOSS), float(attrs.get(TOKENS) or self._horizon_tokens)
        finished = trial.state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
        if not finished:
            h.pending.append(recipe)
            h.known.append(recipe)
        elif attrs.get(DIVERGED) or (loss is not None and not math.isfinite(loss)):
            h.diverged.append(recipe)
            h.diverged_tokens.append(tokens)
            h.known.append(recipe)
        elif loss is not None:
            h.recipes.append(recipe)
            h.losses.append(math.inf if attrs.get(STOPPED) else float(loss))
            h.tokens.append(self._horizon_tokens if attrs.get(STOPPED) else tokens)
            h.noise.append(STOPPED_EXCESS if attrs.get(STOPPED) else NOISE)
            h.log_tokens.append(None if attrs.get(STOPPED) else attrs.get(LOG_TOKENS))
            h.known.append(recipe)
        elif trial.state is not TrialState.FAIL or recipe in h.crashed:
            h.known.append(recipe)
        else:
            h.crashed.append(recipe)

    def _belief(self, axes: Axes, history: _History, rng: np.random.Generator) -> Belief:
        ran = axes.points(history.recipes, history.tokens)
        losses = _winsorised(np.array(history.losses, dtype=np.float64), ran.horizon)
        diverged = axes.points(history.diverged, history.diverged_tokens)
        belief = believe(axes.prior(), ran, losses, np.array(history.noise, dtype=np.float64), diverged, rng)
        return replace(belief, particles=rng.permutation(belief.particles)[:NUM_BOWLS])

    def _best(self, axes: Axes, history: _History, belief: Belief, rng: np.random.Generator) -> Params:
        known = {_key(p) for p in history.known}
        listed = axes.listed()
        pools: list[list[dict[str, Any]]] = (
            [listed] if listed is not None else [self._drawn(axes, history, belief, rng), []]
        )
        best: Params | None = None
        for index, pool in enumerate(pools):
            if index:
                assert best is not None
                around = axes.points([best]).z.repeat(NUM_CANDIDATES // 2, axis=0)
                pool = [dict(best), *axes.around(around, 0.15, rng)]
            fresh = _admissible(pool, known, history.lowest_diverged_rate)
            scores = self._improvement(axes, fresh, history, belief)
            best = fresh[int(np.argmax(scores))]
        assert best is not None
        return best

    def _drawn(self, axes: Axes, history: _History, belief: Belief, rng: np.random.Generator) -> list[dict[str, Any]]:
        picked = belief.particles[rng.integers(len(belief.particles), size=NUM_CANDIDATES)]
        centres = picked[:, : belief.prior.num_axes]
        return axes.around(centres, 0.3, rng) + axes.spread_out(NUM_CANDIDATES // 2, rng)

    def _improvement(self, axes: Axes, recipes: Sequence[Params], history: _History, belief: Belief) -> Array:
        """Expected improvement of log-time, averaged over the bowls, of each recipe."""
        slope = _slope(history, belief.losses)
        points, pending = axes.points(recipes), axes.points(history.pending)
        here = belief.ran.horizon == 0
        seen = belief.ran.at(here)
        seen_recipes = [r for r, h in zip(history.recipes, here, strict=True) if h]
        mean = slope * belief.mean(points) + self._log_prices(axes, recipes)
        spread = slope * belief.spread(points, pending)
        incumbents = [slope * belief.mean(p) + self._log_prices(axes, r) for p, r in (
            (seen, seen_recipes), (pending, history.pending)) if len(p)]  # fmt: skip
        if incumbents:
            best = np.concatenate(incumbents, axis=1).min(axis=1, keepdims=True)
        else:
            best = mean.mean() + np.zeros((len(mean), 1))
        z = (best - mean) / spread
        gain = spread * (np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + z * _normal_cdf(z))
        return np.asarray(np.maximum(gain, 0.0).mean(axis=0) - 1e-9 * mean.mean(axis=0))

    def _log_prices(self, axes: Axes, recipes: Sequence[Params]) -> Array:
        if not self._prices:
            return np.zeros(len(recipes))
        known = np.log(np.array(list(self._prices), dtype=np.float64))
        wanted = np.log([axes.batch_tokens(r) for r in recipes])
        return np.asarray(np.interp(wanted, known, np.log(list(self._prices.values()))))


def _winsorised(losses: Array, horizon: Any) -> Array:
    """Losses cut at ``CAP`` above the best of their horizon; stopped trials (infinite here) a third of that above."""
    cut = losses.copy()
    for level in np.unique(horizon):
        group = horizon == level
        finite = losses[group & np.isfinite(losses)]
        best = float(finite.min()) if len(finite) else 0.0
        cut[group] = np.where(np.isfinite(losses[group]), np.minimum(losses[group], best + CAP), best + STOPPED_EXCESS)
    return cut - (float(cut.min()) if len(cut) else 0.0)


def _slope(history: _History, losses: Array) -> float:
    """Log-tokens to the target per nat of final loss: least squares through trials that carry both, and a prior."""
    pairs = [(x, y) for x, y in zip(losses, history.log_tokens, strict=True) if y is not None and x < 0.9 * CAP]
    if len(pairs) < 2:
        return USUAL_SLOPE
    x, y = np.array(pairs, dtype=np.float64).T
    dx, dy = x - x.mean(), y - y.mean()
    trust = SLOPE_TRUST**2
    return float(np.clip((dx @ dy + trust * USUAL_SLOPE) / (dx @ dx + trust), 1.0, 60.0))


def _admissible(pool: Sequence[Params], known: set[tuple[Any, ...]], rate_limit: float) -> list[Params]:
    """New recipes under the divergence guard; failing those the lowest new rates, failing those what there is."""
    fresh = [p for p in pool if _key(p) not in known]
    below = [p for p in fresh if float(p.get("learning_rate", -math.inf)) < rate_limit]
    if below:
        return below
    safe = [p for p in pool if float(p.get("learning_rate", -math.inf)) < rate_limit]
    return safe or sorted(pool, key=lambda p: float(p.get("learning_rate", 0.0)))[:1]


def _key(params: Params) -> tuple[Any, ...]:
    return tuple(params[n] for n in sorted(params))


def _normal_cdf(z: Array) -> Array:
    """By the error function of Abramowitz and Stegun 7.1.26 (absolute error under 1.5e-7)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half = 0.5 * series * np.exp(-(x**2))
    return np.asarray(np.where(z > 0, 1 - half, half))
