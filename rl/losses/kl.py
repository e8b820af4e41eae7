"""Estimators of the reverse KL from samples of the policy, told apart by what their gradient is.

For log-ratio x = log p - log q of a token sampled from p (http://joschu.net/blog/kl-approx.html),
and with gradients through p only (expectations over p): k1 = x has gradient zero; k2 = x^2 / 2 has
that of the reverse KL(p || q); k3 = exp(-x) - 1 + x has that of the *forward* KL(q || p). As a
value k3 is unbiased and never negative. So k2 is the one to descend and k3 the one to show.
"""

from __future__ import annotations

from torch import Tensor


def k2(logprobs: Tensor, other: Tensor) -> Tensor:
    """Per token [N]; descend this to descend KL(policy || other)."""
    return 0.5 * (logprobs - other).square()


def k3(sampled: Tensor, other: Tensor) -> Tensor:
    """Per token [N]: an unbiased, non-negative estimate of KL(sampled || other), where ``sampled``
    are the log-probabilities of the distribution that the tokens were drawn from.
    """
    log_ratio = other - sampled
    return log_ratio.exp() - 1 - log_ratio
