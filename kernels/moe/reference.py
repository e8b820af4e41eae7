"""Routing and experts in plain torch: tokens sorted by expert, one product per expert."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    logits: Tensor, bias: Tensor, topk: int, normalise: bool = True, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Choose experts from router logits [N, E]. Returns experts [N, k] int64 and weights [N, k]."""
    scores = logits.sigmoid()
    chosen = (scores.detach() + bias).topk(topk, -1).indices
    weights = scores.gather(-1, chosen)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * scale


def experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Apply each token's chosen experts and sum by weight: [N, d]."""
    topk = chosen.shape[1]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=gate_up.shape[0]).cumsum(0).to(torch.int32)
    token = order // topk
    gate, up = _grouped_linear(x[token], gate_up, ends).chunk(2, -1)
    y = _grouped_linear(F.silu(gate) * up, down, ends)
    y = y * weights.flatten()[order].unsqueeze(-1).to(y.dtype)
    return x.new_zeros(x.shape).index_add(0, token, y)


def expert_load(chosen: Tensor, experts: int, valid: Tensor | None = None) -> Tensor:
    """How many tokens chose each expert, [E] float32. ``valid`` [N] leaves padding out."""
    if valid is not None:
        chosen = chosen[valid]
    return torch.bincount(chosen.flatten(), minlength=experts).float()


def _grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of x [M, in], grouped by expert up to ``ends`` [E], times weight [E, out, in]."""
    if x.dtype != torch.float64:
        return F.grouped_mm(x, weight.transpose(-1, -2), offs=ends)
    # grouped_mm knows no float64, which referees need.
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    parts = zip(torch.split(x, counts), weight.unbind(0), strict=True)
    return torch.cat([F.linear(rows, matrix) for rows, matrix in parts])
