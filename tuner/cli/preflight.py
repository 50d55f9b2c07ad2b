"""What would make a run fail is said before anything starts or is written."""

from __future__ import annotations

from tuner.cli.errors import UsageError
from tuner.plan.plan import Plan
from tuner.space.search_space import SearchSpace

NATIVE_PRECISIONS = ("fp32", "bf16")


def check_before_start(plan: Plan) -> None:
    """UsageError for the first thing that stands in the way."""
    space = plan.space
    _check_data(space)
    _check_places(space)
    _check_search(plan)


def _check_data(space: SearchSpace) -> None:
    """A plan does not read the data; a run does."""
    source = space.data.source
    if source is not None and not source.is_file():
        raise UsageError(f"data.source: {source} is not a file; give a text or token file, or leave data.source out")


def _check_places(space: SearchSpace) -> None:
    from tuner.tracking.mlflow_uri import absolute_uri

    if space.cluster.num_nodes > 1:
        raise UsageError(
            f"cluster.nodes: {space.cluster.num_nodes} nodes need a launcher that reaches them, and trials.launcher is "
            f"{space.trials.launcher}; `tune plan` works for any cluster, `tune run` for one node in this version"
        )
    precision = str(space.hyperparameters["precision"].values[0])  # type: ignore[union-attr]
    if precision not in NATIVE_PRECISIONS:
        raise UsageError(
            f"hyperparameters.precision: the native adapter trains in {' or '.join(NATIVE_PRECISIONS)}, not {precision}"
        )
    try:
        absolute_uri(space.tracking.mlflow)
    except ValueError as error:
        raise UsageError(f"tracking.mlflow: {error}") from error


def _check_search(plan: Plan) -> None:
    """The sampler must be able to draw from this space; tried out with a throw-away one."""
    from cost_models.convergence import Law
    from tuner.search.recipe_space import RecipeSpace
    from tuner.search.samplers import SamplerName, sampler_of

    space = plan.space
    batches = sorted({b * space.data.sequence_length for p in plan.feasible for b in p.predictions})
    law = Law(num_parameters=space.model.num_non_embedding_params)
    try:
        recipes = RecipeSpace.of(space, batches)
        name = SamplerName(space.search.sampler)
        sampler_of(name, recipes, law, space.budget.trial.tokens, dict.fromkeys(batches, 1.0), space.search.seed)
    except ValueError as error:
        raise UsageError(f"search: {error}") from error
