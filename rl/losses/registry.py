"""The losses by the name that ``algorithm.loss`` takes."""

from __future__ import annotations

from polymath.rl.losses.base import Aggregation, Loss, LossError
from polymath.rl.losses.cross_entropy import CrossEntropy
from polymath.rl.losses.ppo_clip import PpoClip
from polymath.rl.losses.schema import AlgorithmConfig


def build_loss(config: AlgorithmConfig) -> Loss:
    """The configured loss. Raises ``LossError`` for names and values that are not possible."""
    name, aggregation = config.loss, config.aggregation
    clip_low, clip_high = config.clip_low, config.clip_high
    kl_coefficient, entropy_coefficient = config.kl_coefficient, config.entropy_coefficient
    if aggregation not in list(Aggregation):
        raise LossError(
            f"algorithm.aggregation={aggregation} is not known; it can be {', '.join(Aggregation)}"
        )
    match name:
        case "ppo_clip":
            return PpoClip(
                clip_low, clip_high, kl_coefficient, entropy_coefficient, Aggregation(aggregation)
            )
        case "cross_entropy":
            return CrossEntropy(Aggregation(aggregation))
        case _:
            raise LossError(
                f"algorithm.loss={name} is not known; it can be ppo_clip, cross_entropy"
            )
