"""A capped quadratic bowl with an uncertain centre: what is believed about final losses over recipes, in numpy.

Coordinates are doublings away from where the law puts the optimum. A particle is one bowl: its centre, its
curvatures, the tilt between learning rate and batch, and how far above the optimum training diverges. Sequential
Monte Carlo (tempered likelihood, Metropolis moves) [Del Moral et al. 2006, doi:10.1111/j.1467-9868.2006.00553.x]
turns prior draws into the posterior; a small Gaussian process takes what no bowl explains.
Leaves out: a bowl that is steeper on one side, other than through the divergence edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NUM_PARTICLES = 500
CAP = 0.3
"""Nats above the best at which losses are winsorised; the bowl levels out there too."""
RESIDUALS = (0.003, 0.012, 0.05)
"""Amplitudes of the Gaussian process that are compared by their evidence, in nats."""
RESIDUAL_DOUBT = 2.0
"""Log-evidence that each larger amplitude must bring: a bowl further from the law is believed before a rough one."""
NOISE = 0.0015
"""Loss noise between seeds, in nats."""
LENGTH = 2.0
LEVEL = 3.0
CATEGORY = 0.02
EDGE_GAP = (2.5, 0.5)
"""Doublings of the learning rate from the optimum to divergence: mean and spread over published dense grids."""
EDGE_WIDTH = 0.25
TILT = (0.35, 0.15)
"""Correlation of learning rate and batch in the bowl: larger batches want larger rates."""
SCALE_SPREAD = 0.5
CURVATURE_SPREAD = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Per coordinate: spread of the centre (Student-t, ``dof``), and the curvature in nats per doubling squared."""

    centre_spread: Array
    curvature: Array
    dof: float = 2.0
    rate: int | None = None
    """Which coordinate is the learning rate."""
    batch: int | None = None

    @property
    def num_axes(self) -> int:
        return len(self.centre_spread)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Columns: centres, log-curvature deviations, common log scale, tilt, edge gap."""
        d = self.num_axes
        centres = rng.standard_t(self.dof, (count, d)) * self.centre_spread
        rest = rng.standard_normal((count, d + 3))
        rest[:, :d] *= CURVATURE_SPREAD
        rest[:, d] *= SCALE_SPREAD
        rest[:, d + 1] = TILT[0] + TILT[1] * rest[:, d + 1]
        rest[:, d + 2] = EDGE_GAP[0] + EDGE_GAP[1] * rest[:, d + 2]
        return np.concatenate([centres, rest], axis=1)

    def log_density(self, particles: Array) -> Array:
        d = self.num_axes
        t = particles[:, :d] / self.centre_spread
        log_p = -0.5 * (self.dof + 1) * np.log1p(t**2 / self.dof).sum(1)
        log_p -= 0.5 * ((particles[:, d : 2 * d] / CURVATURE_SPREAD) ** 2).sum(1)
        log_p -= 0.5 * (particles[:, 2 * d] / SCALE_SPREAD) ** 2
        log_p -= 0.5 * ((particles[:, 2 * d + 1] - TILT[0]) / TILT[1]) ** 2
        log_p -= 0.5 * ((particles[:, 2 * d + 2] - EDGE_GAP[0]) / EDGE_GAP[1]) ** 2
        outside = (np.abs(particles[:, 2 * d + 1]) > 0.9) | (particles[:, 2 * d + 2] < 0.5)
        return np.where(outside, -np.inf, log_p)

    def bowl(self, particles: Array, z: Array) -> Array:
        """Nats above the bottom: ``cap (1 - exp(-q / cap))``, ``q`` the tilted quadratic (particles, points)."""
        d = self.num_axes
        scale = np.exp(particles[:, d : 2 * d] + particles[:, 2 * d : 2 * d + 1]) * self.curvature
        offset = (z[None, :, :] - particles[:, None, :d]) * np.sqrt(scale)[:, None, :]
        q = (offset**2).sum(2)
        if self.rate is not None and self.batch is not None:
            q = q - 2 * particles[:, 2 * d + 1, None] * offset[:, :, self.rate] * offset[:, :, self.batch]
        return np.asarray(CAP * -np.expm1(-np.maximum(q, 0.0) / CAP))

    def log_stays(self, particles: Array, z: Array) -> tuple[Array, Array]:
        """Log-probability that a run at ``z`` does not diverge, and that it does."""
        if self.rate is None:
            return np.zeros((len(particles), len(z))), np.zeros((len(particles), len(z)))
        edge = particles[:, self.rate] + particles[:, 2 * self.num_axes + 2]
        over = (z[None, :, self.rate] - edge[:, None]) / EDGE_WIDTH
        return -np.logaddexp(0.0, over), -np.logaddexp(0.0, -over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Recipes in coordinates: numbers ``z``, categories as codes, and which horizon each was (or is to be) run at."""

    z: Array
    codes: npt.NDArray[np.int64]
    horizon: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.z)

    def at(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Points:
        return Points(z=self.z[index], codes=self.codes[index], horizon=self.horizon[index])

    def joined(self, other: Points) -> Points:
        return Points(
            z=np.concatenate([self.z, other.z]),
            codes=np.concatenate([self.codes, other.codes]),
            horizon=np.concatenate([self.horizon, other.horizon]),
        )


def kernel(a: Points, b: Points, residual: float) -> Array:
    """Residual (squared exponential), one free level per horizon, one small effect per category."""
    distance = ((a.z[:, None, :] - b.z[None, :, :]) ** 2).sum(2) / LENGTH**2
    same_horizon = a.horizon[:, None] == b.horizon[None, :]
    same_code = (a.codes[:, None, :] == b.codes[None, :, :]).sum(2)
    total = residual**2 * np.exp(-0.5 * distance) + LEVEL**2 * same_horizon + CATEGORY**2 * same_code
    return np.asarray(total, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The posterior: equally weighted particles, and the Gaussian process around each."""

    prior: Prior
    particles: Array
    residual: float
    ran: Points
    losses: Array
    noise: Array

    def mean(self, points: Points) -> Array:
        """Expected loss per particle and point."""
        bowl = self.prior.bowl(self.particles, points.z)
        if not len(self.ran):
            return bowl
        gram = kernel(self.ran, self.ran, self.residual) + np.diag(self.noise**2)
        gain = np.linalg.solve(gram, kernel(self.ran, points, self.residual))
        rest = self.losses - self.prior.bowl(self.particles, self.ran.z)
        return np.asarray(bowl + rest @ gain)

    def spread(self, points: Points, pending: Points) -> Array:
        """Standard deviation per point around each particle's mean, with ``pending`` taken as known."""
        known = self.ran.joined(pending)
        own = self.residual**2 + CATEGORY**2 * points.codes.shape[1]
        if not len(known):
            return np.full(len(points), np.sqrt(own))
        noise = np.concatenate([self.noise, np.full(len(pending), NOISE)])
        gram = kernel(known, known, self.residual) + np.diag(noise**2)
        cross = kernel(known, points, self.residual)
        variance = own + LEVEL**2 - np.einsum("ij,ij->j", cross, np.linalg.solve(gram, cross))
        return np.asarray(np.sqrt(np.maximum(variance, (0.1 * NOISE) ** 2)))


def believe(
    prior: Prior, ran: Points, losses: Array, noise: Array, diverged: Points, rng: np.random.Generator
) -> Belief:
    """The posterior after ``losses`` (winsorised by the caller) at ``ran``, and the ``diverged`` runs.

    The amplitude of the residual is the one of ``RESIDUALS`` with the largest evidence.
    """
    best: tuple[float, float, Array] | None = None
    for rank, residual in enumerate(RESIDUALS if len(ran) > 2 else RESIDUALS[:1]):
        target = _Likelihood(prior, ran, losses, noise, diverged, residual)
        evidence, particles = _temper(prior, target, rng)
        evidence -= RESIDUAL_DOUBT * rank
        if best is None or evidence > best[0]:
            best = (evidence, residual, particles)
    assert best is not None
    return Belief(prior=prior, particles=best[2], residual=best[1], ran=ran, losses=losses, noise=noise)


class _Likelihood:
    """Log-likelihood of particles: Gaussian losses, and which runs diverged and which did not."""

    def __init__(
        self, prior: Prior, ran: Points, losses: Array, noise: Array, diverged: Points, residual: float
    ) -> None:
        self._prior, self._ran, self._losses, self._diverged = prior, ran, losses, diverged
        factor = np.linalg.cholesky(kernel(ran, ran, residual) + np.diag(noise**2))
        self._inverse = np.linalg.inv(factor)
        self._log_norm = float(-np.log(np.diag(factor)).sum())

    def __call__(self, particles: Array) -> Array:
        total = np.full(len(particles), self._log_norm)
        if len(self._ran):
            rest = self._losses - self._prior.bowl(particles, self._ran.z)
            total -= 0.5 * ((rest @ self._inverse.T) ** 2).sum(1)
            total += self._prior.log_stays(particles, self._ran.z)[0].sum(1)
        if len(self._diverged):
            total += self._prior.log_stays(particles, self._diverged.z)[1].sum(1)
        return np.asarray(total)


def _temper(prior: Prior, likelihood: _Likelihood, rng: np.random.Generator) -> tuple[float, Array]:
    """Sequential Monte Carlo from prior to posterior: log-evidence and particles."""
    particles = prior.draw(NUM_PARTICLES, rng)
    log_prior, log_like = prior.log_density(particles), likelihood(particles)
    heat, evidence = 0.0, 0.0
    while heat < 1.0:
        step = _next_step(log_like, 1.0 - heat)
        raw = step * log_like + np.where(np.isfinite(log_prior), 0.0, -np.inf)
        top = raw.max()
        weights = np.exp(raw - top)
        evidence += float(top + np.log(weights.mean()))
        heat = heat + step if step < 1.0 - heat else 1.0
        weights /= weights.sum()
        spread = np.cov(particles.T, aweights=weights) + 1e-9 * np.eye(particles.shape[1])
        picked = np.searchsorted(np.cumsum(weights), (np.arange(NUM_PARTICLES) + rng.random()) / NUM_PARTICLES)
        picked = np.minimum(picked, NUM_PARTICLES - 1)
        particles, log_prior, log_like = particles[picked], log_prior[picked], log_like[picked]
        factor = np.linalg.cholesky(spread) * 2.38 / np.sqrt(particles.shape[1])
        for shrink in (1.0, 0.5, 1.0, 0.25, 0.5, 0.1):
            moved = particles + shrink * rng.standard_normal(particles.shape) @ factor.T
            moved_prior, moved_like = prior.log_density(moved), likelihood(moved)
            gain = moved_prior + heat * moved_like - log_prior - heat * log_like
            taken = np.log(rng.random(NUM_PARTICLES)) < gain
            particles = np.where(taken[:, None], moved, particles)
            log_prior = np.where(taken, moved_prior, log_prior)
            log_like = np.where(taken, moved_like, log_like)
    return evidence, particles


def _next_step(log_like: Array, most: float) -> float:
    """The largest rise of temperature that keeps half of the particles effective."""

    def effective(step: float) -> float:
        weights = np.exp(step * (log_like - log_like.max()))
        return float(weights.sum() ** 2 / (weights**2).sum()) / len(log_like)

    if effective(most) >= 0.5:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(middle) >= 0.5 else (low, middle)
    return max(low, 1e-6)
