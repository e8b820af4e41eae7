"""Experts against a loop over tokens; the router's choice, weights and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymath.kernels.moe import expert_load, experts, route

WIDTH, INNER, COUNT = 8, 12, 5


def weights(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(COUNT, 2 * INNER, WIDTH, generator=rng, dtype=dtype) * WIDTH**-0.5,
        torch.randn(COUNT, WIDTH, INNER, generator=rng, dtype=dtype) * INNER**-0.5,
    )


def token_by_token(
    x: Tensor, chosen: Tensor, share: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    rows = []
    for n in range(x.shape[0]):
        row = torch.zeros(WIDTH, dtype=x.dtype)
        for e, weight in zip(chosen[n].tolist(), share[n], strict=True):
            gate, up = gate_up[e][:INNER] @ x[n], gate_up[e][INNER:] @ x[n]
            row = row + weight * (down[e] @ (F.silu(gate) * up))
        rows.append(row)
    return torch.stack(rows)


def draw(seed: int, tokens: int, topk: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, WIDTH, generator=rng, dtype=dtype)
    chosen = torch.rand(tokens, COUNT, generator=rng).topk(topk).indices
    return x, chosen, torch.rand(tokens, topk, generator=rng, dtype=dtype)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 40), topk=st.integers(1, COUNT))
def test_experts_equal_a_loop_over_tokens(seed: int, tokens: int, topk: int) -> None:
    x, chosen, share = draw(seed, tokens, topk, torch.float64)
    stacked = weights(seed, torch.float64)
    torch.testing.assert_close(
        experts(x, chosen, share, *stacked), token_by_token(x, chosen, share, *stacked)
    )


@pytest.mark.parametrize("tokens", [1, 3, 200])
def test_float32_agrees_with_float64_forward_and_backward(tokens: int) -> None:
    results = []
    for dtype in (torch.float64, torch.float32):
        inputs = draw(1, tokens, 2, torch.float64)
        x, share = inputs[0].to(dtype).requires_grad_(), inputs[2].to(dtype).requires_grad_()
        stacked = [w.to(dtype).requires_grad_() for w in weights(1, torch.float64)]
        y = experts(x, inputs[1], share, *stacked)
        gradients = torch.autograd.grad(y.sin().sum(), [x, share, *stacked])
        results.append([y.detach(), *gradients])
    for referee, ours in zip(*results, strict=True):
        assert (ours - referee).norm() < 2e-6 * referee.norm()


def test_an_expert_without_tokens_gets_a_zero_gradient() -> None:
    x, _, share = draw(2, 6, 2, torch.float32)
    gate_up, down = (w.requires_grad_() for w in weights(2, torch.float32))
    experts(x, torch.tensor([[0, 3]]).expand(6, 2), share, gate_up, down).sum().backward()
    for weight in (gate_up, down):
        assert weight.grad is not None
        used = weight.grad.flatten(1).abs().sum(1) > 0
        assert used.tolist() == [True, False, False, True, False]


def test_the_bias_steers_the_choice_and_not_the_weights() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    chosen, share = route(logits, torch.zeros(4), 2)
    assert chosen.tolist() == [[0, 1]]
    chosen, share = route(logits, torch.tensor([0.0, -1.0, 0.0, 1.0]), 2)
    assert sorted(chosen[0].tolist()) == [0, 3]
    scores = torch.sigmoid(logits)[0, chosen[0]]
    torch.testing.assert_close(share[0], scores / scores.sum())


def test_weights_are_plain_scores_when_not_normalised_and_scaled_when_asked() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    _, share = route(logits, torch.zeros(3), 2, normalise=False, scale=2.5)
    torch.testing.assert_close(share[0], 2.5 * torch.sigmoid(torch.tensor([2.0, 1.0])))


def test_the_router_learns_through_the_weights() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: route(x, torch.zeros(4, dtype=torch.float64), 2)[1], logits
    )


def test_load_counts_tokens_per_expert_without_padding() -> None:
    chosen = torch.tensor([[0, 1], [0, 2], [1, 3]])
    assert expert_load(chosen, 5).tolist() == [2, 2, 1, 1, 0]
    assert expert_load(chosen, 5, torch.tensor([True, False, True])).tolist() == [1, 2, 0, 1, 0]
