"""Cross-entropy on the tokens that carry loss: supervised training."""

from __future__ import annotations

from polymath.rl.losses.base import Aggregation, LossResult, LossTokens, Mean, aggregate


class CrossEntropy:
    """Behaviour log-probabilities and advantages are not used."""

    needs_reference = False
    needs_entropy_gradient = False

    def __init__(self, aggregation: Aggregation = Aggregation.TOKEN_MEAN) -> None:
        self._aggregation = aggregation

    def __call__(self, tokens: LossTokens) -> LossResult:
        """One term, ``cross_entropy``."""
        term = aggregate("cross_entropy", -tokens.logprobs, tokens, self._aggregation)
        entropy = tokens.entropy.detach()
        return LossResult((term,), {"policy/entropy": Mean(entropy.sum(), entropy.numel())})
