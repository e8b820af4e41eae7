"""The short convolution against torch's own, its state, and borders of documents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymath.kernels.short_conv import short_conv, short_conv_step

CHANNELS, TAPS = 6, 4


def draw(seed: int, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(batch, length, CHANNELS), (CHANNELS, TAPS), (batch, TAPS - 1, CHANNELS)]
    x, weight, state = (torch.randn(*s, generator=rng, dtype=torch.float64) for s in shapes)
    return x, weight, state


def by_torch(x: Tensor, weight: Tensor, state: Tensor) -> Tensor:
    padded = torch.cat([state, x], 1).transpose(1, 2)
    return F.conv1d(padded, weight.unsqueeze(1), groups=CHANNELS).transpose(1, 2)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 3), length=st.integers(1, 20))
def test_equals_a_grouped_convolution(seed: int, batch: int, length: int) -> None:
    x, weight, state = draw(seed, batch, length)
    y, tail = short_conv(x, weight, state)
    torch.testing.assert_close(y, by_torch(x, weight, state))
    torch.testing.assert_close(tail, torch.cat([state, x], 1)[:, -3:])
    y, _ = short_conv(x, weight)
    torch.testing.assert_close(y, by_torch(x, weight, torch.zeros_like(state)))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 11))
def test_parts_and_steps_equal_the_whole(seed: int, cut: int) -> None:
    x, weight, state = draw(seed, 2, 12)
    y, tail = short_conv(x, weight, state)
    first, middle = short_conv(x[:, :cut], weight, state)
    outputs = [first]
    for t in range(cut, 12):
        step, middle = short_conv_step(x[:, t], weight, middle)
        outputs.append(step.unsqueeze(1))
    torch.testing.assert_close(torch.cat(outputs, 1), y)
    torch.testing.assert_close(middle, tail)


def test_documents_do_not_see_each_other() -> None:
    x, weight, _ = draw(1, 1, 14)
    ids = torch.tensor([[1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 0]])
    y, _ = short_conv(x, weight, document_ids=ids)
    for start, end in ((0, 5), (5, 7), (7, 13)):
        alone, _ = short_conv(x[:, start:end], weight)
        torch.testing.assert_close(y[:, start:end], alone)


def test_the_state_is_taken_at_each_rows_length() -> None:
    x, weight, state = draw(2, 3, 9)
    lengths = torch.tensor([9, 1, 4])
    _, tails = short_conv(x, weight, state, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        _, tail = short_conv(x[row : row + 1, :length], weight, state[row : row + 1])
        torch.testing.assert_close(tails[row : row + 1], tail)


def test_gradients_equal_finite_differences() -> None:
    x, weight, state = (tensor.requires_grad_() for tensor in draw(3, 2, 6))
    ids = torch.tensor([[1, 1, 1, 1, 2, 2], [1, 1, 2, 2, 2, 0]])
    assert torch.autograd.gradcheck(lambda *a: short_conv(*a), (x, weight, state))
    assert torch.autograd.gradcheck(lambda *a: short_conv(*a, document_ids=ids)[0], (x, weight))
