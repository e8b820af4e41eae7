"""Hot weight updates from a safetensors file, copied in place into the live parameters.

The engine's model has the trainer's parameter names, so an update is a checked copy: a missing,
unknown or misshapen tensor is an error that names it, raised before anything has been written.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from polymath.model.checkpoint import digest, load_into, load_tensors


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
        """Check all names and shapes, then copy. Raises ``CheckpointError`` before any write."""
        # The engine proves the digest of what it holds afterwards, so the file's own is not needed.
        tensors = load_tensors(update_info.path, verify=False)
        load_into(self.model, tensors, update_info.path)

    def finish_weight_update(self) -> None:
        """Nothing to finish."""

    def shutdown(self) -> None:
        """Nothing is held open."""


class WorkerExtension:
    """Methods that the engine calls in vLLM's worker (``worker_extension_cls``)."""

    def weights_digest(self) -> str:
        """The digest of the live parameters, as ``polymath.model.checkpoint.digest`` gives it."""
        return digest(self.model_runner.model.state_dict())  # type: ignore[attr-defined]
