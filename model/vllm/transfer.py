"""Hot weight updates from a safetensors file, copied in place into the live parameters.

The engine's model has the trainer's parameter names, so an update is a checked copy: a missing,
unknown or misshapen tensor is an error that names it, raised before anything has been written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from polymath.model.checkpoint import digest
from polymath.model.vllm.weights import check_names, live_weights


@dataclass
class FileInit(WeightTransferInitInfo):
    """Files need no rendezvous."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """``path`` is a safetensors file that holds the whole model."""

    path: str


class FileWeightTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """vLLM's weight transfer protocol over a file, on shared memory or disk."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Nothing to prepare: parameters are plain and stay in place."""

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Check all names, shapes and dtypes, then copy. Raises ``ValueError`` before any write."""
        try:
            with safe_open(update_info.path, framework="pt", device=str(self.device)) as file:
                load_in_place(self.model, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"weight file {update_info.path}: {error}") from error

    def finish_weight_update(self) -> None:
        """Nothing to finish."""

    def shutdown(self) -> None:
        """Nothing is held open."""


def load_in_place(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy ``weights`` into the live tensors of ``model``, all or nothing."""
    live = live_weights(model)
    check_names(live, weights)
    with torch.no_grad():
        for name, tensor in weights.items():
            live[name].copy_(tensor)


class WorkerExtension:
    """Methods that the engine calls in vLLM's worker (``worker_extension_cls``)."""

    def weights_digest(self) -> str:
        """The digest of the live parameters, as ``polymath.model.checkpoint.digest`` gives it."""
        return digest(live_weights(self.model_runner.model))  # type: ignore[attr-defined]
