"""Sparse latent attention in plain torch, with masks in place of gathers."""

from __future__ import annotations

import torch
from torch import Tensor


def index_scores(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Index scores [B, T, S], in float32 at least.

    ``weights`` carry all scale factors (heads^-1/2 and width^-1/2).
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, length, heads, width = q.shape
    k = k.to(dtype)
    products = q.to(dtype).reshape(batch, length * heads, width) @ k.transpose(-1, -2)
    hits = products.view(batch, length, heads, -1).relu()
    return (weights.to(dtype).unsqueeze(-2) @ hits).squeeze(-2)


@torch.no_grad()
def select(scores: Tensor, visible: Tensor, topk: int) -> Tensor:
    """Mask [B, T, S] of the ``topk`` visible tokens with the highest scores, per query.

    Scores tie often, at the zero of the ReLU. Of equal ones the most recent token comes first, so
    the choice depends on the scores alone and not on how a sort treats ties.
    """
    if scores.shape[-1] <= topk:
        return visible
    scores = scores.masked_fill(~visible, -torch.inf)
    border = scores.topk(topk, -1).values[..., -1:]
    above = scores > border
    tied = (scores == border) & visible
    room = topk - above.sum(-1, keepdim=True)
    recency = tied.flip(-1).cumsum(-1).flip(-1)
    return above | (tied & (recency <= room))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Masked attention with expanded keys and values.

    Returns:
        o [B, T, H, Dv] and the probabilities [B, H, T, S]. A query that sees nothing gets zeros.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, x = (tensor.to(dtype).transpose(1, 2) for tensor in (q, k, v))
    probabilities = _masked_softmax((q * scale) @ k.transpose(-1, -2), mask.unsqueeze(1))
    return (probabilities @ x).transpose(1, 2).to(v.dtype), probabilities


def latent_attention(
    q: Tensor, latent: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same attention on the latent itself: the absorbed form, for decoding.

    Args:
        q: [B, T, H, R], queries with the key projection absorbed.

    Returns:
        Mean latent per head [B, T, H, R] and the probabilities [B, H, T, S].
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, length, heads, rank = q.shape
    c = latent.to(dtype)
    rows = (q.to(dtype) * scale).reshape(batch, length * heads, rank)
    scores = (rows @ c.transpose(-1, -2)).view(batch, length, heads, -1)
    probabilities = _masked_softmax(scores, mask.unsqueeze(2))
    o = probabilities.view(batch, length * heads, -1) @ c
    return o.view(batch, length, heads, rank).to(latent.dtype), probabilities.transpose(1, 2)


def indexer_kl(probabilities: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """KL(p || softmax of the index scores) over the masked tokens, per query [B, T].

    Gradient flows into ``scores`` only. Queries whose mask is empty get 0.

    Args:
        probabilities: attention [B, H, T, S], zero outside the mask.
    """
    with torch.no_grad():
        target = probabilities.sum(1)
        target = target / target.sum(-1, keepdim=True).clamp_min(torch.finfo(target.dtype).tiny)
        negative_entropy = torch.xlogy(target, target).sum(-1)
    # Where p is zero the logarithm must not matter, not even as -inf times 0.
    log_q = scores.masked_fill(~mask, -torch.inf).log_softmax(-1).masked_fill(~mask, 0.0)
    cross: Tensor = (target * log_q).sum(-1)
    return negative_entropy - cross


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the masked entries; rows without any become zeros, also in the gradient."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
