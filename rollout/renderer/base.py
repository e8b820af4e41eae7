"""The renderer: the one object that turns conversation into tokens and tokens into actions.

The agent loop, supervised training and the viewer share it, so that no second opinion of the
format exists. Tokens only append: ``opening`` + sampled + ``results`` + sampled + ... is the whole
context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polymath.envs.types import Effort, Observation, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Opening:
    """What stands before the first sampled token."""

    instructions: str
    tools: tuple[ToolSpec, ...]
    effort: Effort
    prompt: Observation


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that does not parse. ``error`` is told to the model, which may correct it."""

    id: str
    text: str
    error: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What one assistant turn says. Without calls, ``text`` is the final answer."""

    thinking: str
    text: str
    calls: tuple[ToolCall | MalformedCall, ...]
    complete: bool
    """Whether the turn was closed by the end-of-turn token."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call led to; ``id`` is the call's."""

    id: str
    content: Observation


class Renderer(Protocol):
    """One chat format."""

    vocab_size: int
    pad_id: int
    stop_ids: tuple[int, ...]

    def opening(self, opening: Opening) -> list[int]:
        """Everything up to and including the mark that starts the assistant's turn."""
        ...

    def results(self, results: Sequence[ToolResult]) -> list[int]:
        """What is appended after an assistant turn, up to the next start mark."""
        ...

    def assistant(self, message: AssistantMessage) -> list[int]:
        """A message as the model should have sampled it, closed by the end-of-turn token."""
        ...

    def parse(self, tokens: Sequence[int]) -> AssistantMessage:
        """Read sampled tokens. Never raises: what is wrong becomes a ``MalformedCall``."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as text for people, special tokens visible."""
        ...
