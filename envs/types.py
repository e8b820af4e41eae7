"""The nouns of the domain contract: plain, frozen, serialisable values.

Nothing here knows how a task is run or scored; see ``contract`` for that. These types import no
torch, ray, vllm or transformers, so that a domain team's plugin installs in seconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Json = Any
"""A value that ``json.dumps`` takes: dict, list, str, int, float, bool or None."""


class Effort(StrEnum):
    """The thinking budget that a prompt asks for."""

    LOW = "low"
    HIGH = "high"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Text:
    """A content part: text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A content part: an image by the SHA-256 of its encoded bytes, so that logs stay small."""

    digest: str
    media_type: str
    width: int
    height: int


ContentPart = Text | Image
Observation = tuple[ContentPart, ...]


def text(value: str) -> Observation:
    """An observation that is one piece of text."""
    return (Text(value),)


def as_text(observation: Observation) -> str:
    """The observation's text parts joined; an image stands as ``[image WxH]``."""
    return "".join(
        part.text if isinstance(part, Text) else f"[image {part.width}x{part.height}]"
        for part in observation
    )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool. ``id`` is unique within its assistant turn."""

    id: str
    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The model's last word; it ends the episode."""

    text: str


Action = ToolCall | FinalAnswer


@dataclass(frozen=True, slots=True)
class Level:
    """One setting of a domain's knobs. Levels are ordered by ``index``, easiest first."""

    index: int
    name: str
    knobs: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use. Bytes, seconds and counts."""

    memory_bytes: int = 1 << 30
    processes: int = 64
    cpus: float = 1.0
    workspace_bytes: int = 128 << 20
    command_seconds: float = 30.0
    output_bytes: int = 16 << 10
    turns: int = 8
    episode_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """What a domain declares about itself.

    ``guess_rate`` is the highest mean reward that a constant answer may reach; the certificate
    checks it. ``reward_range`` is (floor, maximum). ``instructions`` is the system prompt's text.
    """

    id: str
    version: str
    levels: tuple[Level, ...]
    tools: tuple[ToolSpec, ...] = ()
    instructions: str = ""
    image: str = "base"
    limits: Limits = Limits()
    reward_range: tuple[float, float] = (0.0, 1.0)
    guess_rate: float = 0.0
    licence: str = "Apache-2.0"

    @property
    def family(self) -> str:
        """The part of the id before the slash."""
        return self.id.split("/", 1)[0]

    def level(self, index: int) -> Level:
        """The level with this index, or ``KeyError`` that lists the levels."""
        for level in self.levels:
            if level.index == index:
                return level
        known = ", ".join(str(level.index) for level in self.levels)
        raise KeyError(f"{self.id} has no level {index}; it has {known}")


@dataclass(frozen=True, slots=True)
class Task:
    """One generated problem. ``private`` (the gold) never enters the agent's sandbox."""

    domain: str
    level: int
    seed: int
    prompt: Observation
    files: Mapping[str, bytes] = field(default_factory=dict)
    private: Mapping[str, Json] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole content; equal tasks have equal digests."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Json]:
        """A JSON value that ``from_json`` turns back into an equal task."""
        return {
            "domain": self.domain,
            "level": self.level,
            "seed": self.seed,
            "prompt": observation_to_json(self.prompt),
            "files": {path: base64.b64encode(data).decode() for path, data in self.files.items()},
            "private": dict(self.private),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Task:
        """The inverse of ``to_json``."""
        return cls(
            domain=value["domain"],
            level=value["level"],
            seed=value["seed"],
            prompt=observation_from_json(value["prompt"]),
            files={path: base64.b64decode(data) for path, data in value["files"].items()},
            private=dict(value["private"]),
        )


def observation_to_json(observation: Observation) -> list[Json]:
    """Content parts as JSON objects; text is ``{"text": ...}``, an image its four fields."""
    return [asdict(part) for part in observation]


def observation_from_json(value: list[Json]) -> Observation:
    """The inverse of ``observation_to_json``."""
    return tuple(Text(**part) if "text" in part else Image(**part) for part in value)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a session lets out of the sandbox at the end; the verifier's only view of the work.

    ``missing`` names the whitelisted paths that could not be read, with the reason.
    """

    answer: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time. Every wait takes one."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline that lies this many seconds ahead."""
        return cls(time.monotonic() + seconds)

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at
