"""Linear maps without bias, several at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def joint(x: Tensor, maps: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """Apply several maps to one input as a single product; joining their weights costs less."""
    weight = torch.cat([m.weight for m in maps])
    return torch.split(F.linear(x, weight), [m.weight.shape[0] for m in maps], -1)


@torch.no_grad()
def init_linear(module: nn.Linear, std: float | None = None) -> None:
    """Normal weights that keep the variance of their input, or have the given deviation."""
    module.weight.normal_(std=module.weight.shape[1] ** -0.5 if std is None else std)
