"""Frames: what is sent is received, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.envs.sandbox.protocol import (
    MAX_FRAME,
    ProtocolError,
    frame,
    frame_length,
    parse,
)

_LEAF = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary()
_VALUE = st.dictionaries(
    st.binary(),
    _LEAF | st.lists(_LEAF, max_size=4) | st.dictionaries(st.binary(), _LEAF, max_size=4),
)


@given(_VALUE)
def test_round_trip(value: dict[bytes, object]) -> None:
    message = frame(value)
    assert frame_length(message[:4]) == len(message) - 4
    back = parse(message[4:])
    assert back == value
    assert [type(item) for item in back.values()] == [type(item) for item in value.values()]


@given(_VALUE, st.data())
def test_cut_and_padded_frames_are_refused(value: dict[bytes, object], data: st.DataObject) -> None:
    body = frame(value)[4:]
    cut = data.draw(st.integers(0, len(body) - 1))
    for wrong in (body[:cut], body + b"\0"):
        with pytest.raises(ProtocolError):
            parse(wrong)


@given(st.binary(max_size=200))
def test_junk_is_a_value_or_refused(junk: bytes) -> None:
    try:
        assert isinstance(parse(junk), dict)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"n",
        b"x",
        b"l\0\0\0\0",
        b"b\0\0\0\4abc",
        b"m\xff\xff\xff\xff",
        b"m\0\0\0\1" + b"n" + b"n",
        b"l\0\0\0\1" * 6,
        b"m\0\0\0\1b\0\0\0\1a" * 6,
    ],
)
def test_what_is_no_dict_or_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(body)


def test_sizes_are_bounded_before_anything_is_read() -> None:
    assert frame_length(MAX_FRAME.to_bytes(4, "big")) == MAX_FRAME
    with pytest.raises(ProtocolError, match="at most"):
        frame_length((MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="at most"):
        frame({b"x": bytes(MAX_FRAME)})
    with pytest.raises(ProtocolError):
        frame({b"x": "text"})
