"""What a rollout leaves behind: turns, segments, episodes and their outcomes, in plain numpy.

A segment's tokens are the concatenation of its turns' ``prompt`` and ``sampled`` tokens. Tokens
only append: a turn's ``prompt`` holds just what was added since the turn before ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from polymath.envs.types import Effort, Json
from polymath.rewards.verdict import Verdict

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class OutcomeKind(StrEnum):
    """How an episode ended. Matched exhaustively wherever it matters."""

    SCORED = "scored"
    TRUNCATED = "truncated"
    INVALID = "invalid"
    INFRASTRUCTURE_FAILED = "infrastructure_failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``reward`` is set for SCORED only; ``why`` is set for all others."""

    kind: OutcomeKind
    reward: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.kind is OutcomeKind.SCORED) != (self.reward is not None):
            raise ValueError(f"outcome {self.kind} with reward {self.reward}")
        if self.kind is not OutcomeKind.SCORED and not self.why:
            raise ValueError(f"outcome {self.kind} needs a reason")


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call. ``sampled``, ``logprobs`` and ``versions`` have equal length, at least 1.

    ``logprobs`` are those of the behaviour distribution (after temperature and top-p);
    ``versions`` is the weight version that sampled each token. ``state_key`` names the state in
    which the turn was sampled. ``events`` holds, by call id, what the session reported, or
    ``{"refused": why}`` for a call that never reached it.
    """

    prompt: Tokens
    sampled: Tokens
    logprobs: Floats
    versions: Tokens
    finish: str
    state_key: str | None = None
    cached_tokens: int = 0
    events: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.sampled) == len(self.logprobs) == len(self.versions) > 0:
            raise ValueError(
                f"a turn's sampled tokens ({len(self.sampled)}), log-probabilities "
                f"({len(self.logprobs)}) and versions ({len(self.versions)}) must match and not be "
                "empty"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """One context, exactly what the model saw."""

    turns: tuple[Turn, ...]

    def tokens(self) -> Tokens:
        """All token ids, [T]."""
        return _join(
            [part for turn in self.turns for part in (turn.prompt, turn.sampled)], np.int32
        )

    def loss_mask(self) -> Mask:
        """True where the policy sampled the token, [T]."""
        return _join(
            [
                np.full(len(part), mine)
                for turn in self.turns
                for part, mine in ((turn.prompt, False), (turn.sampled, True))
            ],
            np.bool_,
        )

    def turn_index(self) -> Tokens:
        """For each token the index of the turn that sampled it, -1 for context, [T]."""
        parts = []
        for index, turn in enumerate(self.turns):
            parts += [np.full(len(turn.prompt), -1), np.full(len(turn.sampled), index)]
        return _join(parts, np.int32)

    def logprobs(self) -> Floats:
        """Behaviour log-probabilities, 0 for context, [T]."""
        return self._spread("logprobs", np.float32)

    def versions(self) -> Tokens:
        """Weight versions, 0 for context, [T]."""
        return self._spread("versions", np.int32)

    def _spread(self, name: str, dtype: type) -> NDArray:  # type: ignore[type-arg]
        parts = []
        for turn in self.turns:
            parts += [np.zeros(len(turn.prompt)), getattr(turn, name)]
        return _join(parts, dtype)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(turn.sampled) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Episode:
    """All turns of one attempt. ``group`` names the (task, effort) that it shares with others."""

    id: str
    group: str
    domain: str
    level: int
    seed: int
    effort: Effort
    task_digest: str
    segments: tuple[Segment, ...]
    outcome: Outcome
    verdict: Verdict | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the time went: ``engine``, ``sandbox``, ``verifier``, ``total``."""

    @property
    def family(self) -> str:
        """The domain's family."""
        return self.domain.split("/", 1)[0]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled over all segments."""
        return sum(segment.sampled_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Row:
    """One segment as training data. All arrays are [T].

    A token carries loss where ``loss_mask`` is set: its own log-probability, given all before it.
    """

    episode: str
    group: str
    tokens: Tokens
    loss_mask: Mask
    logprobs: Floats
    advantages: Floats
    versions: Tokens

    def __post_init__(self) -> None:
        lengths = {
            len(array)
            for array in (
                self.tokens,
                self.loss_mask,
                self.logprobs,
                self.advantages,
                self.versions,
            )
        }
        if len(lengths) != 1:
            raise ValueError(f"row {self.episode}: arrays of unequal length {sorted(lengths)}")
        if self.loss_mask[:1].any():
            raise ValueError(
                f"row {self.episode}: the first token has no context to be sampled from"
            )

    @property
    def loss_tokens(self) -> int:
        """How many tokens carry loss."""
        return int(self.loss_mask.sum())


def _join(parts: list[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
