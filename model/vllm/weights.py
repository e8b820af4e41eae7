"""Names and shapes of live weights, and the one check that guards every load."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def live_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that the engine computes with, by checkpoint name; they share memory with it."""
    return dict(model.state_dict())


def check_names(live: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Raise ``ValueError`` naming the first tensor that is missing, unknown, misshapen or mistyped."""
    if missing := sorted(live.keys() - given.keys()):
        raise ValueError(f"weights lack {missing[0]!r}{_others(missing)}")
    if unknown := sorted(given.keys() - live.keys()):
        raise ValueError(f"weights bring unknown {unknown[0]!r}{_others(unknown)}")
    for name, tensor in given.items():
        have, want = (tuple(tensor.shape), tensor.dtype), (tuple(live[name].shape), live[name].dtype)
        if have != want:
            raise ValueError(f"weight {name!r} is {have[0]} {have[1]}, the model has {want[0]} {want[1]}")


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
