"""What the update optimises: advantage, loss and penalties."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.configs import Section


@dataclass(frozen=True)
class AlgorithmConfig(Section):
    """The algorithm. The defaults are GRPO with clip-higher and token-level denominators."""

    advantage: str = "grpo"
    """``grpo``: the reward minus the mean of its group."""
    normalise_std: bool = False
    """Divide a group's advantages by its standard deviation; groups without spread stay at zero."""
    allow_single: bool = False
    """Accept groups of one episode (their advantage is zero); otherwise they are an error."""
    loss: str = "ppo_clip"
    """``ppo_clip``, or ``cross_entropy`` for supervised training."""
    aggregation: str = "token_mean"
    """``token_mean``, ``sequence_sum`` or ``sequence_mean``; see ``polymath.rl.losses.base``."""
    clip_low: float = 0.2
    """The probability ratio is clipped below at 1 - ``clip_low``."""
    clip_high: float = 0.28
    """The probability ratio is clipped above at 1 + ``clip_high``."""
    kl_coefficient: float = 0.0
    """Weight of the reverse KL to the weights that training began with; 0 keeps no reference."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
