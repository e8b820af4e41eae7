"""KDA: recurrence, chunked form and single steps are one function; float64 is the referee."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from polymath.kernels.kda import kda_chunked, kda_recurrent, kda_step

HEADS, KEY, VALUE = 2, 8, 5


def draw(seed: int, batch: int, length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, g, beta and an initial state, with decay over the whole allowed range."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=dtype)

    q = normalize(normal(batch, length, HEADS, KEY), dim=-1) * KEY**-0.5
    k = normalize(normal(batch, length, HEADS, KEY), dim=-1)
    v = normal(batch, length, HEADS, VALUE)
    g = -5 * torch.sigmoid(4 * normal(batch, length, HEADS, KEY))
    beta = torch.sigmoid(normal(batch, length, HEADS))
    return [q, k, v, g, beta, normal(batch, HEADS, KEY, VALUE)]


def by_the_formula(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple:
    """S = (I - b k k^T) Diag(a) S + b k v^T, o = S^T q, for one sequence and one head."""
    identity = torch.eye(KEY, dtype=q.dtype)
    outputs = []
    for t in range(q.shape[0]):
        erase = identity - beta[t] * torch.outer(k[t], k[t])
        state = erase @ torch.diag(g[t].exp()) @ state + beta[t] * torch.outer(k[t], v[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs), state


def test_the_recurrence_is_the_published_formula() -> None:
    q, k, v, g, beta, state = draw(0, 2, 21)
    o, final = kda_recurrent(q, k, v, g, beta, state)
    for b in range(2):
        for h in range(HEADS):
            want, last = by_the_formula(
                *(x[b, :, h] for x in (q, k, v, g)), beta[b, :, h], state[b, h]
            )
            torch.testing.assert_close(o[b, :, h], want)
            torch.testing.assert_close(final[b, h], last)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    length=st.integers(1, 70),
    chunk_size=st.sampled_from([2, 8, 16]),
    with_state=st.booleans(),
    with_resets=st.booleans(),
)
def test_chunked_equals_recurrent(
    seed: int, batch: int, length: int, chunk_size: int, with_state: bool, with_resets: bool
) -> None:
    *inputs, state = draw(seed, batch, length)
    chunks = -(-length // chunk_size)
    at_chunks = torch.rand(batch, chunks, generator=torch.Generator().manual_seed(seed)) < 0.4
    at_tokens = torch.zeros(batch, chunks * chunk_size, dtype=torch.bool)
    at_tokens[:, ::chunk_size] = at_chunks
    initial = state if with_state else None
    o, final = kda_chunked(
        *inputs, initial, at_chunks if with_resets else None, chunk_size=chunk_size
    )
    want, last = kda_recurrent(*inputs, initial, at_tokens[:, :length] if with_resets else None)
    torch.testing.assert_close(o, want, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(final, last, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [5, 16, 43])
def test_gradients_of_chunked_equal_those_of_the_recurrence(length: int) -> None:
    inputs = [x.requires_grad_() for x in draw(3, 2, length)]
    resets = torch.zeros(2, -(-length // 16), dtype=torch.bool)
    resets[1, -1] = True
    at_tokens = resets.repeat_interleave(16, 1)
    at_tokens[:, torch.arange(at_tokens.shape[1]) % 16 != 0] = False
    weights, state_weights = draw(4, 2, length)[2], draw(5, 2, length)[5]
    gradients = []
    for o, final in (
        kda_chunked(*inputs, resets),
        kda_recurrent(*inputs, at_tokens[:, :length]),
    ):
        loss = (o * weights).sum() + (final * state_weights).sum()
        gradients.append(torch.autograd.grad(loss, inputs))
    for ours, want in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-8, atol=1e-10)


def test_gradients_equal_finite_differences() -> None:
    inputs = [x.requires_grad_() for x in draw(6, 1, 6)]
    assert torch.autograd.gradcheck(lambda *x: kda_chunked(*x, chunk_size=4), inputs)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 39))
def test_a_sequence_can_be_cut_anywhere(seed: int, cut: int) -> None:
    *inputs, state = draw(seed, 2, 40)
    o, final = kda_chunked(*inputs, state)
    first, middle = kda_chunked(*(x[:, :cut] for x in inputs), state)
    second, last = kda_chunked(*(x[:, cut:] for x in inputs), middle)
    torch.testing.assert_close(torch.cat([first, second], 1), o)
    torch.testing.assert_close(last, final)


def test_steps_equal_the_whole_and_leave_the_old_state_alone() -> None:
    *inputs, state = draw(8, 3, 12)
    o, final = kda_chunked(*inputs, state)
    before = state.clone()
    outputs, current = [], state
    for t in range(12):
        y, current = kda_step(*(x[:, t] for x in inputs), current)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), o)
    torch.testing.assert_close(current, final)
    assert torch.equal(state, before)


def test_tokens_without_step_and_decay_leave_the_state_alone() -> None:
    q, k, v, g, beta, state = draw(9, 2, 30)
    used = torch.tensor([30, 11])
    padding = torch.arange(30) >= used[:, None]
    g = g.masked_fill(padding[..., None, None], 0.0)
    beta = beta.masked_fill(padding[..., None], 0.0)
    _, final = kda_chunked(q, k, v, g, beta, state)
    _, want = kda_chunked(*(x[1:, :11] for x in (q, k, v, g, beta)), state[1:])
    torch.testing.assert_close(final[1:], want)


@pytest.mark.parametrize("decay", [-5.0, 0.0])
def test_float32_stays_accurate_at_both_ends_of_the_decay(decay: float) -> None:
    """Equal keys, step size near one: the worst conditioned case there is."""
    q, k, v, g, beta, state = draw(10, 1, 64)
    k = k[:, :1].expand_as(k)
    inputs = [q, k, v, torch.full_like(g, decay), torch.full_like(beta, 0.999)]
    want, _ = kda_recurrent(*inputs, state)
    o, _ = kda_chunked(*(x.float() for x in inputs), state.float())
    assert o.isfinite().all()
    assert (o - want).norm() < 1e-5 * want.norm()


def test_state_is_float32_when_the_inputs_are_bfloat16() -> None:
    *inputs, _ = draw(11, 1, 20, torch.float32)
    low = [x.bfloat16() for x in inputs]
    o, final = kda_chunked(*low)
    assert (o.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    want, last = kda_recurrent(*(x.double() for x in low))
    assert (o - want).norm() < 0.005 * want.norm()
    assert (final - last).norm() < 1e-5 * last.norm()


def test_an_independent_implementation_agrees() -> None:
    """transformers' torch path, which normalises and scales inside."""
    theirs = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    rng = torch.Generator().manual_seed(12)
    q, k, v = (torch.randn(2, 45, HEADS, 8, generator=rng) for _ in range(3))
    g = -torch.rand(2, 45, HEADS, 8, generator=rng)
    beta = torch.rand(2, 45, HEADS, generator=rng)
    state = torch.randn(2, HEADS, 8, 8, generator=rng)
    want, last = theirs.chunk_kimi_delta_attention(
        q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    o, final = kda_chunked(normalize(q, dim=-1) * 8**-0.5, normalize(k, dim=-1), v, g, beta, state)
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=1e-5)
