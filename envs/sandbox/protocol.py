"""What host and shim say to each other: length-prefixed frames of plain values over a socket.

This module runs inside the sandbox too, so it imports next to nothing. Values are None, int, float,
bytes, list and dict with bytes as keys; text travels as bytes, because names and output of a command
may be anything. Both sides bound what they read, and a malformed frame is an error, never a guess.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # type checkers know the name; ``typing`` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

MAX_FRAME = 72 << 20
"""Bytes of one frame: a whole workspace's worth of results with room to spare."""

MAX_FILES = 64 << 20
"""Bytes of file content in one frame."""

_DEPTH = 4
_LENGTH = struct.Struct(">I")
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")


class ProtocolError(Exception):
    """A frame that is too long, cut short or not a value."""


def frame(value: object) -> bytes:
    """A value as a frame: its length in 4 bytes, then the value."""
    parts: list[bytes] = []
    _encode(value, parts, 0)
    body = b"".join(parts)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a frame of {len(body)} bytes; at most {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """The length that the 4 bytes of a header announce, or ``ProtocolError``."""
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_FRAME:
        raise ProtocolError(f"a frame of {length} bytes was announced; at most {MAX_FRAME}")
    return length


def parse(body: bytes) -> dict[bytes, Any]:
    """The dict in a frame's body, or ``ProtocolError``."""
    value, end = _decode(memoryview(body), 0, 0)
    if end != len(body):
        raise ProtocolError(f"{len(body) - end} bytes after the value")
    if not isinstance(value, dict):
        raise ProtocolError(f"a frame holds a dict, not {type(value).__name__}")
    return value


def _encode(value: object, parts: list[bytes], depth: int) -> None:
    if depth > _DEPTH:
        raise ProtocolError("a value is nested too deeply")
    if value is None:
        parts.append(b"n")
    elif isinstance(value, int):
        parts += (b"i", _INT.pack(value))
    elif isinstance(value, float):
        parts += (b"d", _FLOAT.pack(value))
    elif isinstance(value, bytes):
        parts += (b"b", _LENGTH.pack(len(value)), value)
    elif isinstance(value, list):
        parts += (b"l", _LENGTH.pack(len(value)))
        for item in value:
            _encode(item, parts, depth + 1)
    elif isinstance(value, dict):
        parts += (b"m", _LENGTH.pack(len(value)))
        for key, item in value.items():
            if not isinstance(key, bytes):
                raise ProtocolError(f"a key is bytes, not {type(key).__name__}")
            _encode(key, parts, depth + 1)
            _encode(item, parts, depth + 1)
    else:
        raise ProtocolError(f"a {type(value).__name__} cannot travel")


def _decode(data: memoryview, at: int, depth: int) -> tuple[object, int]:
    if depth > _DEPTH:
        raise ProtocolError("a value is nested too deeply")
    tag, at = _take(data, at, 1)
    if tag == b"n":
        return None, at
    if tag == b"i" or tag == b"d":
        number, at = _take(data, at, 8)
        return (_INT if tag == b"i" else _FLOAT).unpack(number)[0], at
    size, at = _take(data, at, 4)
    count: int = _LENGTH.unpack(size)[0]
    if tag == b"b":
        return _take(data, at, count)
    if tag == b"l":
        items: list[object] = []
        for _ in range(count):
            item, at = _decode(data, at, depth + 1)
            items.append(item)
        return items, at
    if tag == b"m":
        mapping: dict[bytes, object] = {}
        for _ in range(count):
            key, at = _decode(data, at, depth + 1)
            if not isinstance(key, bytes):
                raise ProtocolError("a key is not bytes")
            mapping[key], at = _decode(data, at, depth + 1)
        return mapping, at
    raise ProtocolError(f"an unknown tag {tag!r}")


def _take(data: memoryview, at: int, count: int) -> tuple[bytes, int]:
    end = at + count
    if end > len(data):
        raise ProtocolError("a frame is cut short")
    return bytes(data[at:end]), end
