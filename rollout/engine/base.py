"""The engine interface: tokens in, tokens and log-probabilities out.

An engine serves nothing before it has proved the weights it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from polymath.errors import PolymathError
from polymath.rollout.types import Floats, Tokens


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """``temperature`` 0 is greedy. ``max_tokens`` bounds one turn."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One model call's result; arrays are [n] with n >= 1 unless ``finish`` is ``abort``.

    ``finish`` is ``stop`` (a stop token was sampled; it is the last token), ``length`` or ``abort``.
    """

    tokens: Tokens
    logprobs: Floats
    versions: Tokens
    finish: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A published version. ``path`` is a safetensors file (shared memory or disk).

    ``digest`` is ``polymath.model.checkpoint.digest`` of the state dict.
    """

    version: int
    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class WeightProof:
    """What an engine holds: the digest of its live parameters, and what it now computes.

    ``canary_tokens`` were sampled greedily after ``canary_prompt``; the publisher recomputes their
    log-probabilities and compares.
    """

    engine: str
    version: int
    digest: str
    canary_prompt: tuple[int, ...]
    canary_tokens: tuple[int, ...]
    canary_logprobs: tuple[float, ...]


class EngineError(PolymathError):
    """The engine failed; the message names it and says what happened."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start; bytes, seconds and tokens."""

    version: int
    running: int
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    busy_seconds: float
    memory_bytes: int
    labels: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """One engine. On an update an unfinished request is aborted inside, keeps its tokens, and is
    prefilled anew under the new version, so that every token's version is exact."""

    async def start(self) -> WeightProof:
        """Load, warm up, prove. Raises ``EngineError``."""
        ...

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        """Continue ``prompt`` until a stop token or the limit."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` returns what it has with ``finish="abort"``."""
        ...

    async def pause(self) -> None:
        """Stop sampling; requests wait."""
        ...

    async def resume(self) -> None:
        """Go on sampling."""
        ...

    async def update_weights(self, update: WeightUpdate) -> WeightProof:
        """Take a version in and prove it. Raises ``EngineError``; then it serves nothing."""
        ...

    async def stats(self) -> EngineStats:
        """Counters for the metrics."""
        ...

    async def close(self) -> None:
        """Stop and leave no process behind. Safe to call twice."""
        ...
