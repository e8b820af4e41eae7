"""What an advantage estimator is: rewards with group ids in, one advantage per episode out.

    class Best:
        def __call__(self, rewards, groups):
            return rewards - rewards.max()

Episodes belong together by their group's id, never by their position in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polymath.errors import PolymathError

Rewards = NDArray[np.float64]

NO_SPREAD = 1e-8
"""Rewards of a group that differ by no more than this differ by rounding only: no credit at all."""


class AdvantageError(PolymathError):
    """Rewards or groups from which no advantage can be computed; the message names the group."""


class Advantage(Protocol):
    """An estimator. It sees each episode once, however many segments the episode has."""

    def __call__(self, rewards: Rewards, groups: Sequence[str]) -> Rewards:
        """Advantages [N] for rewards [N] and the group id of each. Raises ``AdvantageError``."""
        ...


def members(rewards: Rewards, groups: Sequence[str]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each group's id with the indices of its episodes, in order of first appearance.

    Raises ``AdvantageError`` for unequal lengths and for a reward that is not finite.
    """
    if len(rewards) != len(groups):
        raise AdvantageError(f"{len(rewards)} rewards for {len(groups)} group ids")
    finite = np.isfinite(rewards)
    if not finite.all():
        index = int(np.flatnonzero(~finite)[0])
        raise AdvantageError(f"group {groups[index]}: reward {rewards[index]} is not finite")
    indices: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        indices.setdefault(group, []).append(index)
    for group, found in indices.items():
        yield group, np.array(found)


def no_spread(rewards: Rewards) -> bool:
    """Whether a group's rewards are equal but for rounding."""
    return bool(rewards.max() - rewards.min() <= NO_SPREAD)
