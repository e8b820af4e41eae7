"""From rows to micro-batches: who computes what, decided from lengths alone.

``plan`` deals rows to ranks, packs each rank's rows into lanes and cuts the lanes into
micro-batches, the same number on every rank, because the ranks' collectives must match. ``collate``
turns one planned micro-batch into arrays. Nothing here weighs or averages anything: how a batch is
packed cannot change what is learned.

A document starts at a multiple of the model's chunk size, so that recurrent state is reset only
where chunks begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polymath.errors import PolymathError
from polymath.rollout.types import Row

Scalar = TypeVar("Scalar", bound=np.generic)


class PackingError(PolymathError):
    """Rows that cannot be packed within the limits; the message names the row."""


@dataclass(frozen=True, slots=True)
class RowSize:
    """What planning knows about a row: whose it is, its tokens, and how many of them carry loss."""

    episode: str
    group: str
    tokens: int
    loss_tokens: int

    @classmethod
    def of(cls, row: Row) -> RowSize:
        """The size of a row at hand."""
        return cls(row.episode, row.group, len(row.tokens), row.loss_tokens)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits in tokens: of a lane, of a micro-batch (padding included), and the chunk size.

    A lane is longer than ``lane`` only for a single row that is.
    """

    lane: int
    microbatch: int
    chunk: int

    def padded(self, tokens: int) -> int:
        """A length rounded up to whole chunks."""
        return -(-tokens // self.chunk) * self.chunk


@dataclass(frozen=True, slots=True)
class Placement:
    """Row number ``row`` of the batch lies in its lane from ``start`` on."""

    row: int
    start: int


Lane = tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Lanes of one forward and backward pass, each padded to ``length``. May hold no lanes."""

    lanes: tuple[Lane, ...]
    length: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the rows in it."""
        return tuple(placement.row for lane in self.lanes for placement in lane)


RankPlan = tuple[MicroBatch, ...]


def plan(sizes: Sequence[RowSize], ranks: int, budget: Budget) -> tuple[RankPlan, ...]:
    """Every row that carries loss is placed once; all ranks get equally many micro-batches.

    Raises ``PackingError`` for a row that is longer than a micro-batch may be.
    """
    padded = [budget.padded(size.tokens) for size in sizes]
    for size, length in zip(sizes, padded, strict=True):
        if length > budget.microbatch:
            raise PackingError(
                f"row of episode {size.episode} has {size.tokens} tokens and does not fit into "
                f"learner.tokens_per_microbatch={budget.microbatch}"
            )
    shares = _deal([i for i, size in enumerate(sizes) if size.loss_tokens], padded, ranks)
    limit = min(budget.lane, budget.microbatch)
    batches = [_cut(_pack(share, padded, limit), padded, budget) for share in shares]
    count = max(map(len, batches))
    return tuple(tuple(_split_to(own, count, padded)) for own in batches)


def _deal(rows: list[int], padded: Sequence[int], ranks: int) -> list[list[int]]:
    """Rows to ranks, longest first, each to the rank that has least."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(rows, key=lambda i: -padded[i]):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += padded[row]
    return shares


def _pack(rows: list[int], padded: Sequence[int], limit: int) -> list[Lane]:
    """Best fit: each row, longest first, goes into the fullest lane that still takes it."""
    lanes: list[list[Placement]] = []
    used: list[int] = []
    for row in rows:
        fitting = [i for i, taken in enumerate(used) if taken + padded[row] <= limit]
        best = max(fitting, key=lambda i: used[i], default=None)
        if best is None:
            lanes.append([])
            used.append(0)
            best = len(lanes) - 1
        lanes[best].append(Placement(row, used[best]))
        used[best] += padded[row]
    return [tuple(lane) for lane in lanes]


def _lane_length(lane: Lane, padded: Sequence[int]) -> int:
    return lane[-1].start + padded[lane[-1].row]


def _batch(lanes: Sequence[Lane], padded: Sequence[int]) -> MicroBatch:
    return MicroBatch(tuple(lanes), max((_lane_length(lane, padded) for lane in lanes), default=0))


def _cut(lanes: list[Lane], padded: Sequence[int], budget: Budget) -> list[MicroBatch]:
    """Lanes of similar length into as few micro-batches as the budget allows, evenly filled."""
    lanes = sorted(lanes, key=lambda lane: -_lane_length(lane, padded))
    batches: list[list[Lane]] = []
    width = 0
    for lane in lanes:
        if not batches or width * (len(batches[-1]) + 1) > budget.microbatch:
            batches.append([])
            width = _lane_length(lane, padded)
        batches[-1].append(lane)
    return [_batch(batch, padded) for batch in batches]


def _split_to(batches: list[MicroBatch], count: int, padded: Sequence[int]) -> list[MicroBatch]:
    """Exactly ``count`` micro-batches: the widest are halved, and empty ones fill up the rest."""
    batches = list(batches)
    while len(batches) < count:
        widest = max(range(len(batches)), key=lambda i: len(batches[i].lanes), default=None)
        if widest is None or len(batches[widest].lanes) < 2:
            batches.append(MicroBatch((), 0))
            continue
        lanes = batches.pop(widest).lanes
        half = len(lanes) // 2
        batches += [_batch(lanes[:half], padded), _batch(lanes[half:], padded)]
    return batches


@dataclass(frozen=True, slots=True)
class Collated:
    """One micro-batch as arrays.

    ``input_ids``, ``document_ids`` [B, T]: documents count from 1 within a lane, 0 is padding. For
    each of the N tokens that carry loss: ``positions`` into the flattened [B * T] of the token
    *before* it in its document (whose hidden state predicts it), ``targets``, ``behaviour``,
    ``advantages``, and ``sequence_tokens`` (how many loss tokens its episode has in the batch).
    """

    input_ids: NDArray[np.int64]
    document_ids: NDArray[np.int32]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    behaviour: NDArray[np.float32]
    advantages: NDArray[np.float32]
    sequence_tokens: NDArray[np.float32]


def collate(
    batch: MicroBatch, rows: Mapping[int, Row], sequence_tokens: Mapping[str, int], chunk: int
) -> Collated:
    """Arrays for the planned micro-batch from its rows by number.

    An empty micro-batch becomes one chunk of a document that carries no loss.
    """
    shape = (max(1, len(batch.lanes)), max(chunk, batch.length))
    input_ids = np.zeros(shape, np.int64)
    document_ids = np.zeros(shape, np.int32)
    if not batch.lanes:
        document_ids[:] = 1
    parts: list[tuple[NDArray[np.int64], Row, NDArray[np.intp]]] = []
    for index, lane in enumerate(batch.lanes):
        for document, placement in enumerate(lane, start=1):
            row = rows[placement.row]
            span = slice(placement.start, placement.start + len(row.tokens))
            input_ids[index, span] = row.tokens
            document_ids[index, span] = document
            own = np.flatnonzero(row.loss_mask)
            parts.append((index * shape[1] + placement.start + own - 1, row, own))

    counts = [np.full(len(own), sequence_tokens[row.episode]) for _, row, own in parts]
    return Collated(
        input_ids=input_ids,
        document_ids=document_ids,
        positions=_joined([positions for positions, _, _ in parts], np.int64),
        targets=_joined([row.tokens[own] for _, row, own in parts], np.int64),
        behaviour=_joined([row.logprobs[own] for _, row, own in parts], np.float32),
        advantages=_joined([row.advantages[own] for _, row, own in parts], np.float32),
        sequence_tokens=_joined(counts, np.float32),
    )


def _joined(parts: Sequence[NDArray[Any]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def sequence_tokens(sizes: Sequence[RowSize]) -> dict[str, int]:
    """How many loss tokens each episode has over all its segments in the batch."""
    counts: dict[str, int] = {}
    for size in sizes:
        if size.loss_tokens:
            counts[size.episode] = counts.get(size.episode, 0) + size.loss_tokens
    return counts
