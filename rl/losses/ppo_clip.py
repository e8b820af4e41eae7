"""PPO's clipped objective with separate bounds (arXiv 1707.06347; clip-higher: arXiv 2503.14476).

The gradient of a token vanishes once its ratio has left the interval in the direction that its
advantage favours. The optional KL to a reference enters as k2, whose gradient is the reverse KL's.
"""

from __future__ import annotations

import torch

from polymath.rl.losses.base import (
    Aggregation,
    LossError,
    LossResult,
    LossTokens,
    Mean,
    Term,
    aggregate,
)
from polymath.rl.losses.kl import k2, k3

MAX_LOG_RATIO = 20.0
"""Ratios are taken no further than exp(+-20): beyond, only overflow would be gained."""


class PpoClip:
    """Raises ``LossError`` for bounds that do not enclose a ratio of 1."""

    def __init__(
        self,
        clip_low: float,
        clip_high: float,
        kl_coefficient: float = 0.0,
        entropy_coefficient: float = 0.0,
        aggregation: Aggregation = Aggregation.TOKEN_MEAN,
    ) -> None:
        if not 0 < clip_low <= 1 or clip_high <= 0:
            raise LossError(
                f"clip_low={clip_low} must lie in (0, 1] and clip_high={clip_high} above 0"
            )
        self._bounds = (1 - clip_low, 1 + clip_high)
        self._kl_coefficient = kl_coefficient
        self._entropy_coefficient = entropy_coefficient
        self._aggregation = aggregation

    @property
    def needs_reference(self) -> bool:
        """Only where a KL is asked for."""
        return self._kl_coefficient > 0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Only for the entropy bonus."""
        return self._entropy_coefficient != 0

    def __call__(self, tokens: LossTokens) -> LossResult:
        """Terms ``policy``, and ``reference_kl`` and ``entropy`` where their weight is not zero."""
        low, high = self._bounds
        log_ratio = tokens.logprobs - tokens.behaviour
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        surrogate = ratio * tokens.advantages
        clipped = ratio.clamp(low, high) * tokens.advantages
        terms = [aggregate("policy", -torch.minimum(surrogate, clipped), tokens, self._aggregation)]
        terms += self._penalties(tokens)
        with torch.no_grad():
            return LossResult(tuple(terms), *self._metrics(tokens, ratio))

    def _penalties(self, tokens: LossTokens) -> list[Term]:
        terms = []
        if self._kl_coefficient > 0:
            if tokens.reference is None:
                raise LossError("the KL penalty needs reference log-probabilities")
            penalty = self._kl_coefficient * k2(tokens.logprobs, tokens.reference)
            terms.append(aggregate("reference_kl", penalty, tokens, self._aggregation))
        if self._entropy_coefficient != 0:
            bonus = -self._entropy_coefficient * tokens.entropy
            terms.append(aggregate("entropy", bonus, tokens, self._aggregation))
        return terms

    def _metrics(
        self, tokens: LossTokens, ratio: torch.Tensor
    ) -> tuple[dict[str, Mean], dict[str, torch.Tensor]]:
        low, high = self._bounds
        under = (ratio < low) & (tokens.advantages < 0)
        over = (ratio > high) & (tokens.advantages > 0)
        logprobs = tokens.logprobs.detach()
        values = {
            "policy/clip_fraction": (under | over).to(ratio.dtype),
            "policy/clip_fraction_low": under.to(ratio.dtype),
            "policy/clip_fraction_high": over.to(ratio.dtype),
            "policy/entropy": tokens.entropy,
            "policy/mismatch_kl": k3(tokens.behaviour, logprobs),
            "advantage/mean_abs": tokens.advantages.abs(),
        }
        if tokens.reference is not None:
            values["policy/reference_kl"] = k3(logprobs, tokens.reference)
        means = {name: Mean(value.sum(), value.numel()) for name, value in values.items()}
        return means, {"policy/ratio_max": ratio.max()} if ratio.numel() else {}
