"""The ``polymath`` chat format: the conversation as tokens, and sampled tokens as actions.

    opening    <|system|>INSTRUCTIONS{<|tools|>{"name":..,"description":..,"parameters":..}}
               <|effort_X|><|end|><|user|>PROMPT<|end|><|assistant|>
    assistant  [<|think|>THOUGHT<|/think|>]TEXT{<|call|>NAME:ID<|args|>{..json..}<|/call|>}<|end|>
    results    {<|tool|>ID<|sep|>CONTENT<|end|>}<|assistant|>

The marks are special tokens, which no text can spell; so the format needs no escapes. An assistant
turn without calls is the final answer. Images are placeholders that carry their content hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from polymath.envs.types import Effort, Image, Json, Observation, Text, ToolCall, ToolSpec
from polymath.rollout.renderer.base import AssistantMessage, MalformedCall, Opening, ToolResult
from polymath.rollout.renderer.tokenizer import (
    RESERVED,
    SPECIAL_TOKENS,
    byte_pieces,
    load_tokenizer,
)

PAD, END, SYSTEM, USER, ASSISTANT, TOOL, THINK, THINK_END = range(8)
CALL, ARGS, CALL_END, TOOLS, SEP, EFFORT_LOW, EFFORT_HIGH, EFFORT_MAX, IMAGE, IMAGE_END = range(
    8, 18
)

_EFFORTS = {Effort.LOW: EFFORT_LOW, Effort.HIGH: EFFORT_HIGH, Effort.MAX: EFFORT_MAX}


class PolymathRenderer:
    """Renders and parses the format. ``tokenizer_path`` is a ``tokenizer.json`` or its folder.

    Raises ``TokenizerError`` for a tokenizer that does not fit. Safe to share between episodes.
    """

    pad_id: int = PAD
    stop_ids: tuple[int, ...] = (END,)

    def __init__(self, tokenizer_path: str | os.PathLike[str]) -> None:
        self._tokenizer = load_tokenizer(tokenizer_path)
        self._pieces = byte_pieces(self._tokenizer)
        self.vocab_size: int = len(self._pieces)
        self._system = lru_cache(maxsize=256)(self._render_system)

    def opening(self, opening: Opening) -> list[int]:
        """Everything up to and including the mark that starts the assistant's turn."""
        tools = tuple(tool_json(tool) for tool in opening.tools)
        return [
            *self._system(opening.instructions, tools, opening.effort),
            USER,
            *self._observation(opening.prompt),
            END,
            ASSISTANT,
        ]

    def results(self, results: Sequence[ToolResult]) -> list[int]:
        """What is appended after an assistant turn, up to the next start mark."""
        tokens: list[int] = []
        for result in results:
            tokens += [TOOL, *self._text(result.id), SEP, *self._observation(result.content), END]
        return [*tokens, ASSISTANT]

    def assistant(self, message: AssistantMessage) -> list[int]:
        """A message as the model should have sampled it.

        It is closed by the end-of-turn token unless the message says that it is not complete.
        """
        tokens: list[int] = []
        if message.thinking:
            tokens += [THINK, *self._text(message.thinking), THINK_END]
        tokens += self._text(message.text)
        for call in message.calls:
            if isinstance(call, MalformedCall):
                tokens += [CALL, *self._text(call.text), CALL_END]
            else:
                head = self._text(f"{call.name}:{call.id}")
                tokens += [CALL, *head, ARGS, *self._text(compact(call.arguments)), CALL_END]
        return [*tokens, END] if message.complete else tokens

    def parse(self, tokens: Sequence[int]) -> AssistantMessage:
        """Read sampled tokens. Never raises: what is wrong becomes a ``MalformedCall``.

        A mark where the format has none makes a malformed call too, so that a broken turn is
        answered with an error and never taken for a final answer. What follows the end is ignored.
        """
        body = [int(token) for token in tokens]
        complete = END in body
        if complete:
            body = body[: body.index(END)]
        thinking, start, problem = self._thinking(body)
        if problem:
            call = MalformedCall("0", self.decode(body[start:]), problem)
            return AssistantMessage(thinking, "", (call,), complete)
        position = next((i for i in range(start, len(body)) if _is_mark(body[i])), len(body))
        text = self.decode(body[start:position])
        calls: list[ToolCall | MalformedCall] = []
        while position < len(body):
            end = _end_of_span(body, position)
            calls.append(self._call(body[position:end], calls))
            position = end
        return AssistantMessage(thinking, text, tuple(calls), complete)

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as text for people, special tokens visible.

        Bytes that are not UTF-8 show as U+FFFD, ids outside the vocabulary as nothing.
        """
        pieces, size = self._pieces, self.vocab_size
        data = b"".join([pieces[token] for token in tokens if 0 <= token < size])
        return data.decode("utf-8", "replace")

    def encode_text(self, text: str) -> list[int]:
        """Ordinary text as tokens, none of them special."""
        return self._text(text)

    def _thinking(self, body: list[int]) -> tuple[str, int, str]:
        """The thinking section, where the text starts, and what is wrong with the section."""
        if body[:1] != [THINK]:
            return "", 0, ""
        end = next((i for i in range(1, len(body)) if _is_mark(body[i])), len(body))
        thought = self.decode(body[1:end])
        if end == len(body):
            return thought, end, f"{SPECIAL_TOKENS[THINK]} was not closed"
        if body[end] != THINK_END:
            return thought, end, f"{SPECIAL_TOKENS[body[end]]} inside the thinking section"
        return thought, end + 1, ""

    def _call(
        self, span: list[int], before: Sequence[ToolCall | MalformedCall]
    ) -> ToolCall | MalformedCall:
        """One span that starts at a mark after the text: a call, or what is wrong with it."""

        def malformed(error: str, id: str = "") -> MalformedCall:
            return MalformedCall(id or str(len(before)), self.decode(span), error)

        if span[0] != CALL:
            return malformed(f"unexpected {self.decode(span)[:40]!r} outside a call")
        if span[-1] != CALL_END:
            return malformed(f"the call was not closed with {SPECIAL_TOKENS[CALL_END]}")
        inner = span[1:-1]
        marks = [token for token in inner if _is_mark(token)]
        if marks != [ARGS]:
            return malformed(f"a call needs exactly one mark inside, {SPECIAL_TOKENS[ARGS]}")
        split = inner.index(ARGS)
        name, colon, id = self.decode(inner[:split]).rpartition(":")
        if not colon or not name or not id:
            return malformed(f"write NAME:ID before {SPECIAL_TOKENS[ARGS]}")
        if any(call.id == id for call in before):
            return malformed(f"the call id {id!r} is used twice")
        try:
            return ToolCall(id, name, read_arguments(self.decode(inner[split + 1 :])))
        except ValueError as error:
            return malformed(str(error), id)

    def _render_system(
        self, instructions: str, tools: tuple[str, ...], effort: Effort
    ) -> tuple[int, ...]:
        tokens = [SYSTEM, *self._text(instructions)]
        for tool in tools:
            tokens += [TOOLS, *self._text(tool)]
        return (*tokens, _EFFORTS[effort], END)

    def _observation(self, observation: Observation) -> list[int]:
        tokens: list[int] = []
        for part in observation:
            match part:
                case Text(text):
                    tokens += self._text(text)
                case Image():
                    tokens += [IMAGE, *self._text(image_digest(part)), IMAGE_END]
        return tokens

    def _text(self, text: str) -> list[int]:
        # A lone surrogate has no UTF-8 form; it becomes U+FFFD as in any decoder.
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def tool_json(tool: ToolSpec) -> str:
    """A tool as the model sees it, in compact JSON."""
    return compact(
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    )


def image_digest(image: Image) -> str:
    """What stands between the image marks until patches do: size and a short content hash."""
    return f"{image.width}x{image.height} {image.digest[:12]}"


def compact(value: Mapping[str, Json]) -> str:
    """JSON without optional white space, in the mapping's own order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_arguments(source: str) -> dict[str, Json]:
    """A call's arguments, or ``ValueError`` with one short line for the model."""
    try:
        value = json.loads(source)
    except json.JSONDecodeError as error:
        raise ValueError(f"the arguments are not JSON: {error.msg} at {error.pos}") from None
    except (RecursionError, ValueError):
        raise ValueError("the arguments are nested too deep or hold too long a number") from None
    if not isinstance(value, dict):
        raise ValueError(f"the arguments must be a JSON object, not {type(value).__name__}")
    try:
        # What cannot be written again (NaN, infinity, half a surrogate pair) would fail later.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("the arguments hold a number or letter that JSON cannot write") from None
    return value


def _is_mark(token: int) -> bool:
    return 0 <= token < RESERVED


def _end_of_span(body: list[int], start: int) -> int:
    """Where the call that starts here ends: after its ``<|/call|>``, else before the next call,
    else with the turn. Stray tokens outside a call end before the next call.
    """
    for index in range(start + 1, len(body)):
        if body[index] == CALL:
            return index
        if body[index] == CALL_END and body[start] == CALL:
            return index + 1
    return len(body)
