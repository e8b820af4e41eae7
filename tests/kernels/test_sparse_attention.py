"""Sparse latent attention: selection and its tie rule, both forms, the indexer's loss."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from polymath.kernels.sparse_attention import (
    attention,
    index_scores,
    indexer_kl,
    latent_attention,
    select,
)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(batch: int, length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril().expand(batch, -1, -1)


def picked_one_by_one(scores: Tensor, visible: Tensor, topk: int) -> Tensor:
    """Sort by score, then by recency: the rule as one would say it."""
    mask = torch.zeros_like(visible)
    for b in range(scores.shape[0]):
        for t in range(scores.shape[1]):
            seen = [s for s in range(scores.shape[2]) if visible[b, t, s]]
            seen.sort(key=lambda s: (-float(scores[b, t, s]), -s))
            mask[b, t, seen[:topk]] = True
    return mask


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]), min_size=12, max_size=12),
    holes=st.lists(st.booleans(), min_size=12, max_size=12),
    topk=st.integers(1, 13),
)
def test_selection_takes_the_highest_and_of_equals_the_most_recent(
    values: list[float], holes: list[bool], topk: int
) -> None:
    scores = torch.tensor(values).expand(1, 12, 12)
    visible = causal(1, 12) & torch.tensor(holes)
    assert torch.equal(select(scores, visible, topk), picked_one_by_one(scores, visible, topk))


def test_index_scores_are_the_weighted_sum_of_heads() -> None:
    q, k, w = normal(0, 2, 5, 3, 4), normal(1, 2, 7, 4), normal(2, 2, 5, 3)
    scores = index_scores(q, k, w)
    for b in range(2):
        for t in range(5):
            for s in range(7):
                want = sum(w[b, t, j] * max(float(q[b, t, j] @ k[b, s]), 0.0) for j in range(3))
                torch.testing.assert_close(scores[b, t, s], want)


def test_with_all_tokens_visible_attention_is_torchs_own() -> None:
    q, k, v = normal(0, 2, 9, 3, 4), normal(1, 2, 9, 3, 4), normal(2, 2, 9, 3, 5)
    o, probabilities = attention(q, k, v, causal(2, 9), 0.5)
    want = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, scale=0.5
    ).transpose(1, 2)
    torch.testing.assert_close(o, want)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3, 9, dtype=torch.float64))


def test_sparse_attention_is_attention_on_the_selected_tokens_alone() -> None:
    q, k, v = normal(0, 1, 12, 2, 4), normal(1, 1, 12, 2, 4), normal(2, 1, 12, 2, 4)
    mask = select(normal(3, 1, 12, 12), causal(1, 12), 3)
    o, _ = attention(q, k, v, mask, 0.5)
    for t in range(12):
        kept = mask[0, t].nonzero().flatten()
        assert len(kept) == min(3, t + 1)
        want = scaled_dot_product_attention(
            q[:, t : t + 1].transpose(1, 2),
            k[:, kept].transpose(1, 2),
            v[:, kept].transpose(1, 2),
            scale=0.5,
        )
        torch.testing.assert_close(o[:, t], want[:, :, 0])


def test_the_absorbed_form_equals_the_expanded_one() -> None:
    q, latent, up = normal(0, 2, 6, 3, 4), normal(1, 2, 10, 8), normal(2, 3, 4 + 5, 8)
    mask = normal(3, 2, 6, 10) > -0.5
    keys = torch.einsum("bsr,hdr->bshd", latent, up[:, :4])
    values = torch.einsum("bsr,hdr->bshd", latent, up[:, 4:])
    want, p_want = attention(q, keys, values, mask, 0.7)
    mean, p = latent_attention(torch.einsum("bthd,hdr->bthr", q, up[:, :4]), latent, mask, 0.7)
    torch.testing.assert_close(torch.einsum("bthr,hdr->bthd", mean, up[:, 4:]), want)
    torch.testing.assert_close(p, p_want)


def test_queries_that_see_nothing_give_zeros_and_no_gradient() -> None:
    q, k, v = (normal(i, 1, 3, 2, 4).requires_grad_() for i in range(3))
    scores = normal(4, 1, 3, 3).requires_grad_()
    mask = causal(1, 3).clone()
    mask[0, 1] = False
    o, probabilities = attention(q, k, v, mask, 0.5)
    kl = indexer_kl(probabilities, scores, mask)
    assert torch.equal(o[0, 1], torch.zeros(2, 4, dtype=torch.float64))
    assert kl[0, 1] == 0
    (o.sum() + kl.sum()).backward()
    for tensor in (q, k, v, scores):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert not q.grad[0, 1].any()
    assert not scores.grad[0, 1].any()


def test_the_indexer_loss_is_the_divergence_over_the_mask() -> None:
    mask = select(normal(3, 2, 8, 8), causal(2, 8), 4)
    _, probabilities = attention(*(normal(i, 2, 8, 3, 4) for i in range(3)), mask, 0.5)
    scores = normal(5, 2, 8, 8)
    kl = indexer_kl(probabilities, scores, mask)
    for b in range(2):
        for t in range(8):
            kept = mask[b, t]
            p = probabilities[b, :, t].mean(0)[kept]
            log_q = torch.log_softmax(scores[b, t, kept], -1)
            torch.testing.assert_close(kl[b, t], (p * (p.log() - log_q)).sum())
    assert (kl >= 0).all()


def test_the_indexer_loss_vanishes_where_scores_are_the_log_of_attention() -> None:
    mask = causal(1, 6)
    _, probabilities = attention(*(normal(i, 1, 6, 2, 4) for i in range(3)), mask, 0.5)
    ideal = probabilities.mean(1).clamp_min(1e-300).log() + 3.0
    torch.testing.assert_close(
        indexer_kl(probabilities, ideal, mask), torch.zeros(1, 6, dtype=torch.float64)
    )


def test_the_gradient_of_the_indexer_loss_reaches_scores_alone() -> None:
    q, k, v = (normal(i, 1, 6, 2, 4).requires_grad_() for i in range(3))
    scores = normal(5, 1, 6, 6).requires_grad_()
    mask = causal(1, 6)
    _, probabilities = attention(q, k, v, mask, 0.5)
    indexer_kl(probabilities, scores, mask).sum().backward()
    assert q.grad is None
    assert k.grad is None
    # d KL / d score = softmax(scores) - p.
    softmax = scores.detach().masked_fill(~mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(scores.grad, softmax - probabilities.detach().mean(1))
