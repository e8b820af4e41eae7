"""A policy on disk: a folder with ``config.json`` and ``model.safetensors``, and its digest.

Files appear whole or not at all: each is written beside its place and renamed. The digest of the
stored tensors travels in the header of the file, so that damage is noticed when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from polymath.errors import PolymathError
from polymath.model.config import ModelConfig, read, resolve

WEIGHTS = "model.safetensors"

# Small tensors whose rounding would be felt everywhere; they keep float32 whatever the storage is.
FULL_PRECISION = (
    "A_log",
    "dt_bias",
    "conv1d.weight",
    "e_score_correction_bias",
    "norm.weight",
    "norm.bias",
    "layernorm.weight",
)


class CheckpointError(PolymathError):
    """A checkpoint cannot be written, read or used; the message names the file and the tensor."""


def save(
    folder: str | Path,
    config: ModelConfig,
    state_dict: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
) -> str:
    """Write a checkpoint folder and return the digest of what it holds.

    Args:
        dtype: storage type of the large tensors; None keeps each as it is.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "config.json", lambda path: path.write_text(config.to_json()))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error.strerror})") from error
    return save_tensors(folder / WEIGHTS, state_dict, dtype)


def load(path: str | Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read a checkpoint folder (``starter`` is the packaged one): its configuration and tensors.

    Raises:
        CheckpointError: a damaged or missing weight file.
        ModelConfigError: a missing or foreign ``config.json``.
    """
    config = read(str(path))
    return config, load_tensors(resolve(str(path)) / WEIGHTS)


def save_tensors(
    file: str | Path, state_dict: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> str:
    """Write one safetensors file and return the digest of what it holds.

    Raises:
        CheckpointError: the file cannot be written.
    """
    file = Path(file)
    tensors = {
        name: tensor.detach().to("cpu", _storage_dtype(name, tensor, dtype)).contiguous()
        for name, tensor in state_dict.items()
    }
    fingerprint = digest(tensors)
    metadata = {"format": "pt", "digest": fingerprint}
    try:
        _replace(file, lambda path: save_file(tensors, path, metadata))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be written ({error})") from error
    return fingerprint


def load_tensors(file: str | Path, verify: bool = True) -> dict[str, Tensor]:
    """Read a safetensors file; ``verify`` compares its content with the digest in its header.

    Raises:
        CheckpointError: missing, cut short, or not what was written.
    """
    file = Path(file)
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: {_damage(file, error)}") from error
    expected = metadata.get("digest")
    if verify and expected is not None and digest(tensors) != expected:
        raise CheckpointError(f"{file}: its content is not what was written (digest differs)")
    return tensors


def load_into(model: nn.Module, state_dict: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into a model in place, each in the model's own type.

    Args:
        where: what the message calls the source.

    Raises:
        CheckpointError: names the first tensor that is missing, unknown, or of another shape.
    """
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in state_dict:
            raise CheckpointError(f"{where}: {name} is missing")
        if state_dict[name].shape != tensor.shape:
            raise CheckpointError(
                f"{where}: {name} is {list(state_dict[name].shape)}, "
                f"the model's is {list(tensor.shape)}"
            )
    for name in state_dict:
        if name not in own:
            raise CheckpointError(f"{where}: {name} is not part of the model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state_dict[name])


def digest(state_dict: Mapping[str, Tensor]) -> str:
    """Fingerprint of names, types, shapes and bytes, in any order of the tensors: 32 hex digits."""
    whole = hashlib.blake2b(digest_size=16)
    for name in sorted(state_dict):
        tensor = state_dict[name].detach()
        whole.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        whole.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _storage_dtype(name: str, tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None or not tensor.is_floating_point():
        return tensor.dtype
    return torch.float32 if name.endswith(FULL_PRECISION) else dtype


def _replace(file: Path, write) -> None:  # type: ignore[no-untyped-def]
    """Let ``write`` fill a temporary neighbour of ``file``, then rename it over ``file``."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _damage(file: Path, error: Exception) -> str:
    """Say what is wrong with a file that safetensors refused."""
    if not file.is_file():
        return "there is no such file"
    try:
        with file.open("rb") as opened:
            start = 8 + int.from_bytes(opened.read(8), "little")
            if start > file.stat().st_size:
                return "cut short within its header; copy or save it again"
            header = json.loads(opened.read(start - 8))
        available = file.stat().st_size - start
        lost = [
            (entry["data_offsets"][1], name)
            for name, entry in header.items()
            if name != "__metadata__" and entry["data_offsets"][1] > available
        ]
    except (OSError, ValueError, KeyError, TypeError) as reason:
        return f"not a safetensors file ({reason})"
    if lost:
        return f"cut short at tensor {min(lost)[1]} ({len(lost)} lost); copy or save it again"
    return f"damaged ({error})"
