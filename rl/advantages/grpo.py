"""GRPO: credit is the reward minus the mean of its group (arXiv 2402.03300, section 4.1).

Dividing by the group's standard deviation is part of the original and optional here: it weighs up
tasks that are nearly always or nearly never solved (arXiv 2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polymath.rl.advantages.base import AdvantageError, Rewards, members, no_spread


class Grpo:
    """``normalise_std`` divides by the population standard deviation; a group without spread gets
    exact zeros. A group of one raises ``AdvantageError`` unless ``allow_single`` is set.
    """

    def __init__(self, normalise_std: bool = False, allow_single: bool = False) -> None:
        self._normalise_std = normalise_std
        self._allow_single = allow_single

    def __call__(self, rewards: Rewards, groups: Sequence[str]) -> Rewards:
        """Advantages [N] for rewards [N] and the group id of each."""
        advantages = np.zeros(len(rewards))
        for group, own in members(rewards, groups):
            if len(own) == 1 and not self._allow_single:
                raise AdvantageError(
                    f"group {group} has one episode, so it has no baseline; "
                    "raise group_size, or set algorithm.allow_single=true"
                )
            if no_spread(rewards[own]):
                continue
            centred = rewards[own] - rewards[own].mean()
            advantages[own] = centred / rewards[own].std() if self._normalise_std else centred
        return advantages
