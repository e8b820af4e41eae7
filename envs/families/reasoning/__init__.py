"""Reasoning tasks without tools, from the data sets of reasoning-gym."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymath.envs.contract import Domain
from polymath.envs.families.reasoning.chain_sum import ChainSum
from polymath.envs.families.reasoning.spell_backward import SpellBackward

DOMAINS: Mapping[str, Callable[[], Domain]] = {
    domain.spec.id: domain for domain in (ChainSum, SpellBackward)
}
"""The family's domains by id."""
