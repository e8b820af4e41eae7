"""The estimators by the name that ``algorithm.advantage`` takes."""

from __future__ import annotations

from polymath.rl.advantages.base import Advantage, AdvantageError
from polymath.rl.advantages.grpo import Grpo
from polymath.rl.losses.schema import AlgorithmConfig


def build_advantage(config: AlgorithmConfig) -> Advantage:
    """The configured estimator. Raises ``AdvantageError`` for a name that is not known."""
    name, normalise_std, allow_single = (
        config.advantage,
        config.normalise_std,
        config.allow_single,
    )
    match name:
        case "grpo":
            return Grpo(normalise_std, allow_single)
        case _:
            raise AdvantageError(f"algorithm.advantage={name} is not known; it can be grpo")
