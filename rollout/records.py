"""What the run store holds: the kinds of records, and the way from turns and episodes to records.

A turn is journalled as it ends, so an episode's record only counts its turns; ``episodes`` joins
them again. Values are msgpack: plain JSON-like data, bytes, and numpy vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgpack
import numpy as np

from polymath.envs.types import Artifact, Effort, Json
from polymath.rewards.verdict import Status, Verdict
from polymath.rollout.types import Episode, Outcome, OutcomeKind, Segment, Turn

_VECTOR = 1
"""The msgpack extension code of a numpy vector: its dtype's name, a bar, its bytes."""


class Kind(StrEnum):
    """What a record says."""

    OPENED = "opened"
    """An episode began: its identity."""
    TURN = "turn"
    """A turn ended: episode, index and all its arrays."""
    EPISODE = "episode"
    """An episode ended: identity, turns per segment, outcome, artifact, seconds."""
    VERDICT = "verdict"
    """A verdict on an episode, at its end or later (rescoring)."""
    CONSUMED = "consumed"
    """Ledger: episodes whose tokens were trained in a step."""
    DROPPED = "dropped"
    """Ledger: episodes whose tokens were dropped, with the reason."""
    NOTE = "note"
    """Anything else worth keeping, for people and resume."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry. ``at`` is Unix time in seconds, for people; order is that of the log."""

    kind: Kind
    at: float
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """An episode's identity, known before its first turn."""

    id: str
    group: str
    domain: str
    level: int
    seed: int
    effort: Effort
    task_digest: str

    def to_data(self) -> dict[str, Json]:
        """The data of an ``OPENED`` record."""
        return {
            "episode": self.id,
            "group": self.group,
            "domain": self.domain,
            "level": self.level,
            "seed": self.seed,
            "effort": str(self.effort),
            "task": self.task_digest,
        }


def pack(record: Record) -> bytes:
    """The record as bytes."""
    return pack_value([str(record.kind), record.at, record.data])


def unpack(payload: bytes) -> Record:
    """The inverse of ``pack``. Raises ``ValueError`` for bytes that are no record."""
    try:
        kind, at, data = unpack_value(payload)
        return Record(Kind(kind), float(at), data)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a record: {error}") from error


def pack_value(value: Any) -> bytes:
    """JSON-like data, bytes and numpy vectors as msgpack. Raises ``TypeError`` for anything else,
    ``ValueError`` for an integer beyond 64 bits.
    """
    try:
        packed: bytes = msgpack.packb(
            value, default=_pack_other, use_bin_type=True, unicode_errors="surrogatepass"
        )
    except OverflowError as error:
        raise ValueError(f"cannot pack: {error}") from error
    return packed


def unpack_value(payload: bytes) -> Any:
    """The inverse of ``pack_value``; tuples come back as lists. Raises ``ValueError``."""
    try:
        return msgpack.unpackb(
            payload,
            ext_hook=_unpack_other,
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
    except (TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"cannot unpack: {error}") from error


def turn_data(episode: str, index: int, turn: Turn) -> dict[str, Any]:
    """The data of a ``TURN`` record."""
    return {
        "episode": episode,
        "index": index,
        "prompt": turn.prompt,
        "sampled": turn.sampled,
        "logprobs": turn.logprobs,
        "versions": turn.versions,
        "finish": turn.finish,
        "state_key": turn.state_key,
        "cached_tokens": turn.cached_tokens,
        "events": dict(turn.events),
    }


def turn_from(data: Mapping[str, Any]) -> Turn:
    """The inverse of ``turn_data``."""
    fields = {name: value for name, value in data.items() if name not in ("episode", "index")}
    return Turn(**fields)


def episode_data(episode: Episode, artifact: Artifact | None) -> dict[str, Any]:
    """The data of an ``EPISODE`` record."""
    key = EpisodeKey(
        episode.id,
        episode.group,
        episode.domain,
        episode.level,
        episode.seed,
        episode.effort,
        episode.task_digest,
    )
    outcome = episode.outcome
    return {
        **key.to_data(),
        "turns": [len(segment.turns) for segment in episode.segments],
        "outcome": {"kind": str(outcome.kind), "reward": outcome.reward, "why": outcome.why},
        "verdict": verdict_data(episode.verdict),
        "seconds": dict(episode.seconds),
        "artifact": artifact_data(artifact),
    }


def episode_from(data: Mapping[str, Any], turns: Iterable[Turn]) -> Episode:
    """The inverse of ``episode_data``, given the episode's turns in order."""
    rest = iter(turns)
    segments = tuple(Segment(tuple(next(rest) for _ in range(count))) for count in data["turns"])
    outcome = data["outcome"]
    return Episode(
        id=data["episode"],
        group=data["group"],
        domain=data["domain"],
        level=data["level"],
        seed=data["seed"],
        effort=Effort(data["effort"]),
        task_digest=data["task"],
        segments=segments,
        outcome=Outcome(OutcomeKind(outcome["kind"]), outcome["reward"], outcome["why"]),
        verdict=verdict_from(data["verdict"]),
        seconds=data["seconds"],
    )


def verdict_data(verdict: Verdict | None) -> dict[str, Any] | None:
    """A verdict as plain data."""
    if verdict is None:
        return None
    return {
        "status": str(verdict.status),
        "reward": verdict.reward,
        "components": dict(verdict.components),
        "evidence": dict(verdict.evidence),
    }


def verdict_from(data: Mapping[str, Any] | None) -> Verdict | None:
    """The inverse of ``verdict_data``."""
    if data is None:
        return None
    return Verdict(Status(data["status"]), data["reward"], data["components"], data["evidence"])


def artifact_data(artifact: Artifact | None) -> dict[str, Any] | None:
    """An artifact as plain data."""
    if artifact is None:
        return None
    return {
        "answer": artifact.answer,
        "files": dict(artifact.files),
        "missing": dict(artifact.missing),
    }


def artifact_from(data: Mapping[str, Any] | None) -> Artifact | None:
    """The inverse of ``artifact_data``."""
    return None if data is None else Artifact(data["answer"], data["files"], data["missing"])


def episodes(records: Iterable[Record]) -> Iterator[Episode]:
    """The finished episodes of a log, with their turns, in the order in which they ended."""
    turns: dict[str, dict[int, Turn]] = {}
    for record in records:
        if record.kind is Kind.OPENED:
            turns.pop(record.data["episode"], None)  # an attempt that died is played afresh
        elif record.kind is Kind.TURN:
            played = turns.setdefault(record.data["episode"], {})
            played[record.data["index"]] = turn_from(record.data)
        elif record.kind is Kind.EPISODE:
            played = turns.pop(record.data["episode"], {})
            yield episode_from(record.data, [played[index] for index in sorted(played)])


def _pack_other(value: object) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return msgpack.ExtType(_VECTOR, value.dtype.name.encode() + b"|" + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a record cannot hold {type(value).__name__}")


def _unpack_other(code: int, data: bytes) -> Any:
    if code != _VECTOR:
        raise ValueError(f"unknown extension {code}")
    dtype, _, body = data.partition(b"|")
    return np.frombuffer(body, np.dtype(dtype.decode()))
