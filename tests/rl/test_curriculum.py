from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.envs.types import DomainSpec, Level
from polymath.errors import UserError
from polymath.rl.curriculum import HELD_OUT_SEEDS, SUPERVISED_SEEDS, Curriculum, Draw, kinds
from polymath.rl.schema import DomainShare, MixtureConfig


def spec(id: str, levels: int) -> DomainSpec:
    return DomainSpec(id=id, version="1", levels=tuple(Level(i, str(i)) for i in range(levels)))


SPECS = {"a/one": spec("a/one", 2), "b/two": spec("b/two", 3)}
BOTH = MixtureConfig(domains={"a/one": DomainShare(), "b/two": DomainShare()})


def deal(curriculum: Curriculum, count: int) -> list[Draw]:
    return [curriculum.draw() for _ in range(count)]


def test_domains_of_equal_weight_are_drawn_equally_often_whatever_their_number_of_levels() -> None:
    counts = Counter(draw.domain for draw in deal(Curriculum(BOTH, SPECS, seed=3), 240))
    assert counts == {"a/one": 120, "b/two": 120}


def test_weights_are_shares_of_the_draws() -> None:
    mixture = MixtureConfig(domains={"a/one": DomainShare(weight=3.0), "b/two": DomainShare()})
    counts = Counter(draw.domain for draw in deal(Curriculum(mixture, SPECS, seed=0), 2400))
    assert counts["a/one"] == 3 * counts["b/two"]


def test_training_seeds_never_meet_held_out_or_supervised_ones() -> None:
    seeds = [draw.seed for draw in deal(Curriculum(BOTH, SPECS, seed=1), 500)]
    assert min(seeds) >= HELD_OUT_SEEDS
    assert max(seeds) < SUPERVISED_SEEDS


def test_a_seed_decides_all_draws() -> None:
    assert deal(Curriculum(BOTH, SPECS, 5), 50) == deal(Curriculum(BOTH, SPECS, 5), 50)
    assert deal(Curriculum(BOTH, SPECS, 5), 50) != deal(Curriculum(BOTH, SPECS, 6), 50)


@given(before=st.integers(0, 60), after=st.integers(1, 40))
def test_a_restored_curriculum_goes_on_where_it_was(before: int, after: int) -> None:
    original = Curriculum(BOTH, SPECS, seed=2)
    deal(original, before)
    restored = Curriculum(BOTH, SPECS, seed=2)
    restored.restore(original.state)
    assert deal(restored, after) == deal(original, after)


def test_a_draw_survives_json() -> None:
    draw = Curriculum(BOTH, SPECS, seed=0).draw()
    assert Draw.from_json(draw.to_json()) == draw


def test_levels_can_be_chosen() -> None:
    mixture = MixtureConfig(domains={"b/two": DomainShare(levels=(2,))})
    assert {(k.domain, k.level) for k in kinds(mixture, SPECS)} == {("b/two", 2)}


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (MixtureConfig(), "mixture.domains is empty"),
        (MixtureConfig(domains={"a/one": DomainShare(levels=(7,))}), "has no level 7; it has 0, 1"),
        (MixtureConfig(domains={"a/one": DomainShare(weight=0.0)}), "every weight is 0"),
    ],
)
def test_an_impossible_mixture_is_one_line(mixture: MixtureConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Curriculum(mixture, SPECS, seed=0)


def test_a_deck_of_another_mixture_is_not_dealt_to_its_end() -> None:
    original = Curriculum(BOTH, SPECS, seed=2)
    deal(original, 3)
    smaller = MixtureConfig(domains={"a/one": DomainShare()})
    changed = Curriculum(smaller, SPECS, seed=2)
    changed.restore(original.state)
    draws = deal(changed, 4)
    assert {draw.domain for draw in draws} == {"a/one"}
    assert [draw.index for draw in draws] == [3, 4, 5, 6]
