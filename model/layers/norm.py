"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension. Source: arXiv 1910.07467."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape and dtype."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def unit_length(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Scale to unit length, x / sqrt(sum(x^2) + eps), over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
