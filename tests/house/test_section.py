"""Sections know what was read of them, and by no other way than reading."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, field
from multiprocessing import get_context

import pytest

from polymath.configs import Section, bind, forget_reads, reads


@dataclass(frozen=True)
class Inner(Section):
    rate: float = 0.5
    names: tuple[str, ...] = ("a",)


@dataclass(frozen=True)
class Outer(Section):
    steps: int = 3
    inner: Inner = field(default_factory=Inner)
    shares: dict[str, Inner] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    forget_reads()


def test_reading_a_value_is_recorded_by_its_full_path() -> None:
    config = bind(Outer())
    assert config.inner.rate == 0.5
    assert reads() == {"inner.rate"}


def test_passing_a_section_on_reads_nothing_of_it() -> None:
    config = bind(Outer(shares={"x/y": Inner()}))
    assert config.inner is not None
    inner = config.shares["x/y"]
    assert reads() == set()
    assert inner.names == ("a",)
    assert reads() == {"shares.x/y.names"}


@pytest.mark.parametrize(
    "use",
    [
        repr,
        pickle.dumps,
        deepcopy,
        Section.to_dict,
        lambda c: c == Outer(),
        lambda c: c.replace(steps=4),
    ],
    ids=["repr", "pickle", "deepcopy", "to_dict", "equality", "replace"],
)
def test_handling_a_section_reads_nothing(use: object) -> None:
    assert callable(use)
    use(bind(Outer()))
    assert reads() == set()


def test_an_unbound_section_records_nothing() -> None:
    assert Outer().steps == 3
    assert reads() == set()


def test_binding_leaves_the_original_and_shared_defaults_alone() -> None:
    original = Outer()
    bind(original)
    assert (original.steps, original.inner.rate) == (3, 0.5)
    assert reads() == set()


def test_a_changed_copy_keeps_its_path() -> None:
    inner = bind(Outer()).inner.replace(rate=0.25)
    assert inner.rate == 0.25
    assert reads() == {"inner.rate"}
    with pytest.raises(TypeError, match="no field 'rat'"):
        inner.replace(rat=1)


def read_there(config: Outer) -> set[str]:
    assert config.inner.rate == 0.5
    return reads()


def test_reads_in_another_process_are_recorded_there() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        assert pool.submit(read_there, bind(Outer())).result(timeout=60) == {"inner.rate"}
    assert reads() == set()


def test_sections_are_frozen_and_compare_by_value() -> None:
    assert bind(Outer()) == Outer()
    assert Outer(steps=4) != Outer()
    with pytest.raises(FrozenInstanceError):
        Outer().steps = 5  # type: ignore[misc]
    assert Outer().to_dict() == {"steps": 3, "inner": {"rate": 0.5, "names": ["a"]}, "shares": {}}
