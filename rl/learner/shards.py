"""Saved learner state: each rank's shards as safetensors, and one manifest that is written last.

    rank-00000.safetensors ...    tensors as this rank held them
    manifest.json                 step, and for each tensor its shape and where its rows lie

Without a manifest the folder holds nothing. Files are checked by SHA-256 before anything is taken
from them, and nothing is unpickled. Tensors are cut along their first dimension, so any number of
ranks can read what any other number wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from polymath.rl.learner.base import StateError

MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows ``start`` to ``start + len(data)`` of a tensor of this whole ``shape``."""

    name: str
    data: Tensor
    shape: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True, slots=True)
class ShardFile:
    """What a rank wrote: the file's name, size and SHA-256, and {tensor: (shape, start, rows)}."""

    name: str
    bytes: int
    sha256: str
    tensors: Mapping[str, tuple[tuple[int, ...], int, int]]


def write_shards(folder: Path, rank: int, shards: Iterable[Shard]) -> ShardFile:
    """Write one rank's file, to disk for good. Raises ``StateError`` that names the file."""
    kept = [shard for shard in shards if shard.data.numel() or not shard.shape]
    path = folder / f"rank-{rank:05d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({s.name: s.data.detach().cpu().contiguous() for s in kept}, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        raise StateError(f"learner state {path} cannot be written: {error}") from None
    tensors = {s.name: (s.shape, s.start, s.data.shape[0] if s.shape else 0) for s in kept}
    return ShardFile(path.name, path.stat().st_size, _sha256(path), tensors)


def write_manifest(folder: Path, step: int, files: Sequence[ShardFile]) -> None:
    """Declare the folder complete. Raises ``StateError`` that names the file."""
    content = {"format": _FORMAT, "step": step, "files": [asdict(file) for file in files]}
    partial = folder / f"{MANIFEST}.partial"
    try:
        with partial.open("w") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        partial.rename(folder / MANIFEST)
    except OSError as error:
        raise StateError(f"learner state {folder / MANIFEST} cannot be written: {error}") from None


class SavedState:
    """Saved state, opened for reading. Raises ``StateError`` for anything missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        manifest = folder / MANIFEST
        try:
            content: dict[str, Any] = json.loads(manifest.read_text())
        except (OSError, ValueError) as error:
            raise StateError(f"learner state {manifest} cannot be read: {error}") from None
        if content.get("format") != _FORMAT:
            raise StateError(
                f"learner state {manifest} has format {content.get('format')}, "
                f"this version reads {_FORMAT}"
            )
        self.step = int(content["step"])
        self.ranks = len(content["files"])
        self._places: dict[str, list[tuple[str, tuple[int, ...], int, int]]] = {}
        for file in content["files"]:
            self._verify(file)
            for name, (shape, start, rows) in file["tensors"].items():
                place = (file["name"], tuple(shape), start, rows)
                self._places.setdefault(name, []).append(place)

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self._places)

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ``StateError`` unless the tensor is there and has this whole shape."""
        places = self._places.get(name)
        if places is None:
            raise StateError(
                f"learner state {self._folder} has no tensor {name}; "
                "was it saved with another model or optimizer?"
            )
        if places[0][1] != tuple(shape):
            raise StateError(
                f"learner state {self._folder}: {name} has shape {list(places[0][1])}, "
                f"expected {list(shape)}"
            )

    def read(self, name: str, into: Tensor, start: int = 0) -> None:
        """Fill ``into`` with the tensor's rows from ``start`` on."""
        filled = 0
        for file, _, first, rows in self._places[name]:
            filled += self._copy(self._folder / file, name, first, rows, into, start)
        if filled != (into.shape[0] if into.ndim else 1):
            raise StateError(f"learner state {self._folder}: {name} has rows missing")

    def _copy(self, path: Path, name: str, first: int, rows: int, into: Tensor, start: int) -> int:
        """Copy the overlap of a stored part with ``into``; returns its number of rows."""
        with safe_open(path, framework="pt") as stored:
            if not into.ndim:
                into.copy_(stored.get_tensor(name))
                return 1
            low, high = max(first, start), min(first + rows, start + into.shape[0])
            if low >= high:
                return 0
            part = stored.get_slice(name)[low - first : high - first]
            into[low - start : high - start].copy_(part)
            return high - low

    def _verify(self, file: Mapping[str, Any]) -> None:
        path = self._folder / file["name"]
        try:
            size = path.stat().st_size
            if size != file["bytes"]:
                raise StateError(
                    f"learner state {path} is damaged: {size} bytes, {file['bytes']} were written"
                )
            if _sha256(path) != file["sha256"]:
                raise StateError(f"learner state {path} is damaged: its checksum differs")
        except OSError as error:
            raise StateError(f"learner state {path} cannot be read: {error}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def random_state(device: str) -> Tensor:
    """The process's random state as one uint8 tensor: torch's own, then the device's."""
    states = [torch.get_rng_state()]
    if device == "cuda":
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def restore_random_state(state: Tensor, device: str) -> None:
    """The inverse of ``random_state`` on the same kind of device."""
    own = len(torch.get_rng_state())
    torch.set_rng_state(state[:own])
    if device == "cuda":
        torch.cuda.set_rng_state(state[own:])
