"""The short convolution in plain torch: a sum of shifted products."""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None = None,
    document_ids: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve a batch of sequences.

    Args:
        state: [B, K - 1, C] inputs that came before; zeros if absent.
        document_ids: [B, T]; a token sees only inputs of its own document (then no state is given).
        lengths: [B] used length of each row, where rows are padded at their end; T if absent.

    Returns:
        y [B, T, C] and the state after each row's last used token [B, K - 1, C].
    """
    batch, length, channels = x.shape
    taps = weight.shape[1]
    if state is None:
        state = x.new_zeros(batch, taps - 1, channels)
    padded = torch.cat([state.to(x.dtype), x], 1)
    y = x * weight[:, -1]
    for back in range(1, taps):
        start = taps - 1 - back
        shifted = padded[:, start : start + length]
        if document_ids is not None:
            shifted = shifted * _same_document(document_ids, back).to(x.dtype)
        y = torch.addcmul(y, shifted, weight[:, -1 - back])
    return y, _tail(padded, taps - 1, lengths)


def short_conv_step(x: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each of B sequences, x [B, C]. Returns y [B, C] and the new state."""
    window = torch.cat([state.to(x.dtype), x.unsqueeze(1)], 1)
    return (window * weight.t()).sum(1), window[:, 1:]


def _same_document(document_ids: Tensor, back: int) -> Tensor:
    """[B, T, 1] bool: whether the token ``back`` places earlier is of the same document."""
    same = torch.zeros_like(document_ids, dtype=torch.bool)
    same[:, back:] = document_ids[:, back:] == document_ids[:, :-back]
    return same.unsqueeze(-1)


def _tail(padded: Tensor, size: int, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return padded[:, padded.shape[1] - size :]
    places = lengths.long()[:, None] + torch.arange(size, device=padded.device)
    return padded.gather(1, places[..., None].expand(-1, -1, padded.shape[-1]))
