"""Checks of a checkpoint folder that take no model: what would fail in the engine fails here, clearly."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from polymath.model.config import ModelConfig, ModelConfigError, read, resolve
from polymath.rollout.engine.base import EngineError

_HEADER_LIMIT = 100_000_000
"""The safetensors format bounds its header to 100 MB."""


def check_folder(folder: str) -> ModelConfig:
    """The configuration of a folder whose weight files are complete. Raises ``EngineError``."""
    try:
        config = read(folder)
    except ModelConfigError as error:
        raise EngineError(str(error)) from error
    files = sorted(resolve(folder).glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder}: no .safetensors file")
    for file in files:
        check_weights(file)
    return config


def check_weights(file: Path) -> None:
    """Raise ``EngineError`` unless the file is as long as its safetensors header says."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = struct.unpack("<Q", stream.read(8))[0]
            if length > _HEADER_LIMIT:
                raise ValueError("its header is longer than the format allows")
            header = json.loads(stream.read(length))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise EngineError(f"{file}: not a safetensors file ({error})") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise EngineError(
            f"{file}: {size} bytes, its header says {expected}; the copy is incomplete"
        )
