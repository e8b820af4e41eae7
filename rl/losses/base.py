"""What a loss is: named sums, each with a global denominator, over tokens that carry loss.

    class Reinforce:
        needs_reference = needs_entropy_gradient = False
        def __call__(self, tokens):
            total = -(tokens.advantages * tokens.logprobs).sum()
            return LossResult((Term("policy", total, Denominator.TOKENS),))

A loss sees one micro-batch and never divides by anything that it counts there: denominators belong
to the whole batch of the optimizer step, so no way of cutting the batch up changes the gradient.
Metrics are sums with counts, or maxima, for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from polymath.errors import UserError


class LossError(UserError):
    """A loss that cannot be computed as configured."""


class Denominator(StrEnum):
    """What a term's sum is divided by: counts over the whole batch of the step."""

    TOKENS = "tokens"
    """All tokens that carry loss."""
    SEQUENCES = "sequences"
    """All episodes; the segments of one episode count once."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """The global counts of one step."""

    tokens: int
    sequences: int

    def of(self, denominator: Denominator) -> float:
        """The count to divide by, at least 1."""
        return float(max(1, getattr(self, denominator)))


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The tokens of a micro-batch that carry loss; all arrays are [N].

    ``logprobs`` (with gradient) and ``entropy`` are the learner's, at the behaviour's temperature;
    ``behaviour`` are the log-probabilities at which the tokens were sampled; ``reference`` those of
    the frozen reference, if there is one. ``sequence_tokens`` is how many loss tokens the token's
    episode has in the whole batch.
    """

    logprobs: Tensor
    entropy: Tensor
    behaviour: Tensor
    advantages: Tensor
    sequence_tokens: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the loss: ``sum`` (a scalar, weighted already) over a global denominator."""

    name: str
    sum: Tensor
    denominator: Denominator


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric as sum and count; both add up over micro-batches and ranks."""

    sum: Tensor | float
    count: Tensor | float


@dataclass(frozen=True, slots=True)
class LossResult:
    """Terms to descend, means and maxima to show."""

    terms: tuple[Term, ...]
    means: Mapping[str, Mean] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """A loss over the tokens of one micro-batch."""

    @property
    def needs_reference(self) -> bool:
        """Whether ``LossTokens.reference`` must be given."""
        ...

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether ``LossTokens.entropy`` must carry a gradient (costs memory)."""
        ...

    def __call__(self, tokens: LossTokens) -> LossResult:
        """The micro-batch's sums. Must be finite, and well defined for no tokens at all."""
        ...


class Aggregation(StrEnum):
    """How the tokens of unequal sequences are weighed against each other."""

    TOKEN_MEAN = "token_mean"
    """Every token alike; the true policy gradient up to one global factor."""
    SEQUENCE_SUM = "sequence_sum"
    """Tokens summed within an episode, episodes averaged: the true policy gradient."""
    SEQUENCE_MEAN = "sequence_mean"
    """Tokens averaged within an episode, episodes averaged. Prefers short right answers, and can
    push long wrong ones *up*."""


def aggregate(name: str, per_token: Tensor, tokens: LossTokens, aggregation: Aggregation) -> Term:
    """A term from its value per token, [N]."""
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return Term(name, per_token.sum(), Denominator.TOKENS)
        case Aggregation.SEQUENCE_SUM:
            return Term(name, per_token.sum(), Denominator.SEQUENCES)
        case Aggregation.SEQUENCE_MEAN:
            return Term(name, (per_token / tokens.sequence_tokens).sum(), Denominator.SEQUENCES)
