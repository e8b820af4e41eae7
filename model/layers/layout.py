"""Where documents lie in a packed batch, worked out once per forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Masks that the layers share. T is the length of a lane, N its number of chunks.

    Attributes:
        document_ids: [B, T], or None where each lane is one document without padding.
        resets: [B, N] bool, chunks that begin another document; or None.
        visible: [B, T, T] bool, which earlier tokens each token may see, itself included.
        valid: [B, T] bool, tokens that are no padding; or None.
    """

    document_ids: Tensor | None
    resets: Tensor | None
    visible: Tensor
    valid: Tensor | None

    @classmethod
    def of(cls, input_ids: Tensor, document_ids: Tensor | None, chunk_size: int) -> Layout:
        """Read a batch: ``input_ids`` [B, T], ``document_ids`` [B, T] positive, 0 for padding.

        Raises:
            ValueError: the shapes differ, or a document starts inside a chunk.
        """
        length = input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
        if document_ids is None:
            return cls(None, None, causal.expand(input_ids.shape[0], -1, -1), None)
        if document_ids.shape != input_ids.shape:
            raise ValueError(
                f"document_ids is {list(document_ids.shape)}, input_ids is {list(input_ids.shape)}"
            )
        starts = _starts(document_ids)
        _require_aligned(starts, chunk_size)
        same = document_ids.unsqueeze(2) == document_ids.unsqueeze(1)
        valid = document_ids > 0
        return cls(
            document_ids=document_ids,
            resets=starts[:, ::chunk_size],
            visible=same & causal & valid.unsqueeze(1),
            valid=valid,
        )


def _starts(document_ids: Tensor) -> Tensor:
    """[B, T] bool, the first token of each document."""
    before = torch.nn.functional.pad(document_ids[:, :-1], (1, 0))
    return (document_ids != before) & (document_ids > 0)


def _require_aligned(starts: Tensor, chunk_size: int) -> None:
    lane, place = starts.nonzero(as_tuple=True)
    wrong = (place % chunk_size).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(
            f"document_ids: a document starts at token {int(place[first])} of lane "
            f"{int(lane[first])}, not at a multiple of chunk_size {chunk_size}"
        )
