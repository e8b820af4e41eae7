"""GRPO's advantages against values made by hand and by full enumeration."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.rl.advantages.base import AdvantageError
from polymath.rl.advantages.grpo import Grpo
from polymath.rl.advantages.registry import build_advantage
from polymath.rl.losses.schema import AlgorithmConfig


def advantages(rewards, groups, **options):
    return Grpo(**options)(np.array(rewards, np.float64), groups)


def test_the_baseline_is_the_mean_of_the_group():
    found = advantages([1, 0, 0, 1, 0, 0.5], ["a", "a", "a", "a", "b", "b"])
    np.testing.assert_allclose(found, [0.5, -0.5, -0.5, 0.5, -0.25, 0.25])


def test_the_standard_deviation_is_the_populations():
    # mean 2, variance (4 + 0 + 4) / 3
    found = advantages([0, 2, 4], ["a"] * 3, normalise_std=True)
    np.testing.assert_allclose(found, np.array([-2, 0, 2]) / np.sqrt(8 / 3))


def test_groups_go_by_id_and_not_by_position():
    rewards, groups = [1.0, 5.0, 0.0, 7.0], ["a", "b", "a", "b"]
    np.testing.assert_allclose(advantages(rewards, groups), [0.5, -1, -0.5, 1])


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("abc")), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_the_order_of_episodes_does_not_matter(episodes, random, normalise_std):
    options = {"normalise_std": normalise_std, "allow_single": True}
    order = list(range(len(episodes)))
    random.shuffle(order)
    straight = advantages(*zip(*episodes, strict=True), **options)
    shuffled = advantages(*zip(*[episodes[i] for i in order], strict=True), **options)
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-7)


@pytest.mark.parametrize("normalise_std", [False, True])
def test_rewards_that_differ_by_rounding_give_exact_zeros(normalise_std):
    rewards = [0.1 + 0.2, 0.3, 0.3, 1 - 0.7]
    assert len(set(rewards)) > 1
    found = advantages(rewards, ["a"] * 4, normalise_std=normalise_std)
    assert not found.any()


def test_a_group_of_one_is_an_error_unless_allowed():
    with pytest.raises(AdvantageError, match="group lonely has one episode"):
        advantages([1, 0, 1], ["a", "a", "lonely"])
    assert advantages([1.0], ["lonely"], allow_single=True).tolist() == [0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_is_an_error(bad):
    with pytest.raises(AdvantageError, match="group b: reward"):
        advantages([0, 1, bad, 0], ["a", "a", "b", "b"])


def test_the_configuration_names_the_estimator():
    assert isinstance(build_advantage(AlgorithmConfig()), Grpo)
    with pytest.raises(AdvantageError, match="grpoo"):
        build_advantage(AlgorithmConfig(advantage="grpoo"))


def expected_update(p, size, **options):
    """E[mean of advantage x score] over all outcomes of a group, relative to the true gradient, for a
    Bernoulli policy with success probability p: the score of an outcome is (outcome - p)."""
    total = 0.0
    for wins in range(size + 1):
        outcomes = np.array([1.0] * wins + [0.0] * (size - wins))
        probability = comb(size, wins) * p**wins * (1 - p) ** (size - wins)
        total += probability * np.mean(
            advantages(outcomes, ["a"] * size, **options) * (outcomes - p)
        )
    return total / (p * (1 - p))


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9, 0.98])
def test_without_std_the_expected_update_is_the_true_gradient_times_15_16ths(p):
    assert expected_update(p, 16) == pytest.approx(15 / 16, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "factor"), [(0.02, 3.60), (0.1, 2.85), (0.5, 1.93), (0.9, 2.85), (0.98, 3.60)]
)
def test_with_std_easy_and_hard_tasks_weigh_more(p, factor):
    assert expected_update(p, 16, normalise_std=True) == pytest.approx(factor, abs=0.005)
