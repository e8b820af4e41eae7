"""One engine step as rectangular batches: all decodes together, prefills with others of their length.

vLLM lays the tokens of a step end to end. The cores of our layers want [B, T], so each step is cut
into batches once, and every layer reads the same cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Requests that are computed as one rectangle.

    Attributes:
        requests: [B] int64, their places in the step.
        tokens: [B, T] int64, places of their tokens in the step; padding repeats the last one.
        lengths: [B] int64, how many of the T are used; None where all are.
        context: [B] int64, tokens that each request has had before this step.
        longest: tokens of the longest request, this step's included.
    """

    requests: Tensor
    tokens: Tensor
    lengths: Tensor | None
    context: Tensor
    longest: int

    @property
    def width(self) -> int:
        """T: 1 is a decode step."""
        return self.tokens.shape[1]

    def used(self) -> Tensor | None:
        """[B, T] bool, where tokens are no padding; None where all are used."""
        if self.lengths is None:
            return None
        return torch.arange(self.width, device=self.tokens.device) < self.lengths[:, None]

    def gather(self, x: Tensor) -> Tensor:
        """Step tokens [N, ...] to [B, T, ...]."""
        rows = x.index_select(0, self.tokens.flatten())
        return rows.view(*self.tokens.shape, *x.shape[1:])

    def scatter(self, out: Tensor, y: Tensor) -> None:
        """Write [B, T, ...] back to the step's tokens [N, ...]."""
        used = self.used()
        if used is None:
            out.index_copy_(0, self.tokens.flatten(), y.flatten(0, 1))
        else:
            out[self.tokens[used]] = y[used]


def cut(starts: list[int], totals: list[int], device: torch.device) -> list[Batch]:
    """Cut a step into batches in which padding is less than half.

    Args:
        starts: [R + 1] where each request's tokens begin in the step.
        totals: [R] tokens of each request, this step's included.
    """
    sizes = [end - start for start, end in pairwise(starts)]
    order = sorted((r for r in range(len(sizes)) if sizes[r] > 0), key=sizes.__getitem__)
    groups: list[list[int]] = []
    for request in order:
        # Single tokens stay among themselves: their core is another one.
        smallest = sizes[groups[-1][0]] if groups else 0
        if sizes[request] < 2 * smallest:
            groups[-1].append(request)
        else:
            groups.append([request])
    return [_batch(group, sizes, starts, totals, device) for group in groups]


def _batch(
    group: list[int], sizes: list[int], starts: list[int], totals: list[int], device: torch.device
) -> Batch:
    lengths = torch.tensor([sizes[r] for r in group], device=device)
    width = sizes[group[-1]]
    places = torch.arange(width, device=device).minimum(lengths[:, None] - 1)
    return Batch(
        requests=torch.tensor(group, device=device),
        tokens=torch.tensor([starts[r] for r in group], device=device)[:, None] + places,
        lengths=None if sizes[group[0]] == width else lengths,
        context=torch.tensor([totals[r] - sizes[r] for r in group], device=device),
        longest=max(totals[r] for r in group),
    )
