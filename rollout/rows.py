"""Episodes as training rows: one row per context segment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polymath.rollout.types import Episode, Row


def rows_of(episode: Episode, advantages: float | Sequence[float]) -> list[Row]:
    """The rows of an episode; segments without sampled tokens give none.

    ``advantages`` is one value for all its tokens, or one for each turn, in order over all
    segments. Context carries advantage 0. Raises ``ValueError`` when the number of turns differs.
    """
    turns = sum(len(segment.turns) for segment in episode.segments)
    per_turn = [advantages] * turns if isinstance(advantages, int | float) else list(advantages)
    if len(per_turn) != turns:
        raise ValueError(f"episode {episode.id}: {len(per_turn)} advantages for {turns} turns")
    rows, first = [], 0
    for segment in episode.segments:
        # Index -1 is context: it picks the zero at the end.
        values = np.array([*per_turn[first : first + len(segment.turns)], 0.0], np.float32)
        first += len(segment.turns)
        if not segment.sampled_tokens:
            continue
        rows.append(
            Row(
                episode=episode.id,
                group=episode.group,
                tokens=segment.tokens(),
                loss_mask=segment.loss_mask(),
                logprobs=segment.logprobs(),
                advantages=values[segment.turn_index()],
                versions=segment.versions(),
            )
        )
    return rows
