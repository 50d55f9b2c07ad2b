"""From a search space to recipes: what is free, how warmup is read, how many points there are."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.search.recipe_space import RecipeSpace, horizon_steps, warmup_steps

LOG_RATE = {"low": 1e-4, "high": 1e-2, "log": True}


def test_scalars_and_lists_of_one_are_fixed_and_the_rest_is_free(make_space):
    space = make_space(learning_rate=LOG_RATE, warmup=[10], schedule="cosine")
    recipes = RecipeSpace.of(space, [4096, 1024])
    assert recipes.fixed == {"warmup": 10, "weight_decay": 0.1, "schedule": "cosine"}
    assert set(recipes.free) == {"learning_rate", "batch_tokens"}
    assert recipes.batches == (1024, 4096)
    assert recipes.size is None
    assert not recipes.is_empty


def test_the_batches_given_replace_those_of_the_file(make_space):
    recipes = RecipeSpace.of(make_space(batch_tokens=[1024, 2048, 4096]), [2048])
    assert recipes.is_empty
    assert recipes.size == 1
    assert recipes.recipe({}, 1e6).batch_tokens == 2048


def test_distributions_are_of_the_kind_of_each_dimension(make_space):
    space = make_space(
        learning_rate=LOG_RATE,
        warmup={"low": 5, "high": 50, "log": True},
        weight_decay={"low": 0.0, "high": 0.25, "step": 0.1},
        schedule=["cosine", "linear"],
    )
    found = RecipeSpace.of(space, [1024, 2048]).distributions()
    assert found == {
        "batch_tokens": CategoricalDistribution((1024, 2048)),
        "learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "warmup": IntDistribution(5, 50, log=True),
        "weight_decay": FloatDistribution(0.0, 0.2, step=0.1),
        "schedule": CategoricalDistribution(("cosine", "linear")),
    }


def test_size_counts_the_points_of_a_finite_space(make_space):
    space = make_space(
        learning_rate=[1e-3, 2e-3], warmup={"low": 1, "high": 3}, weight_decay={"low": 0.0, "high": 0.2, "step": 0.1}
    )
    recipes = RecipeSpace.of(space, [1024])
    assert recipes.size == 2 * 3 * 3 == len(list(recipes.points()))
    assert len({recipes.recipe(p, 1e6) for p in recipes.points()}) == 18


@pytest.mark.parametrize(
    "warmup, num_steps, steps",
    [(0.1, 200, 20), (20, 200, 20), (1, 200, 1), (0, 200, 0), (500, 200, 100), (0.9, 200, 100), (5, 1, 0)],
)
def test_warmup_below_one_is_a_fraction_and_half_the_horizon_is_the_most(warmup, num_steps, steps):
    assert warmup_steps(warmup, num_steps) == steps


def test_a_recipe_turns_warmup_into_steps_of_its_own_batch(make_space):
    recipes = RecipeSpace.of(make_space(warmup=0.1), [1000, 4000])
    assert recipes.recipe({"batch_tokens": 1000}, 400_000).warmup == 40
    assert recipes.recipe({"batch_tokens": 4000}, 400_000).warmup == 10
    assert horizon_steps(400_000, 4000) == 100
    assert horizon_steps(10, 4000) == 1


def test_grid_spreads_ranges_over_five_values_with_their_ends(make_space):
    space = make_space(learning_rate=LOG_RATE, warmup={"low": 1, "high": 3})
    grid = RecipeSpace.of(space, [1024, 2048]).grid()
    assert grid["learning_rate"] == pytest.approx([1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2])
    assert grid["warmup"] == [1, 2, 3]
    assert grid["batch_tokens"] == [1024, 2048]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"warmup": {"low": 0.05, "high": 50}}, "mixes fractions"),
        ({"learning_rate": {"low": 1e-2, "high": 1e-4}}, "below high"),
        ({"learning_rate": {"low": 0, "high": 1e-4, "log": True}}, "low above 0"),
        ({"dropout": 0.1}, "not part of a recipe"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_the_values(make_space, changes, message):
    with pytest.raises(ValueError, match=message):
        RecipeSpace.of(make_space(**changes), [1024])


def test_no_batch_left_and_foreign_parameters_are_errors(make_space):
    with pytest.raises(ValueError, match="no batch size left"):
        RecipeSpace.of(make_space(), [])
    with pytest.raises(ValueError, match="not those of the space"):
        RecipeSpace.of(make_space(), [1024]).recipe({"learning_rate": 1e-3}, 1e6)
