"""Laws of the chat format: tokens only append, text spells no mark, parsing inverts rendering."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymath.envs.types import Effort, Image, Text, ToolCall, ToolSpec, text
from polymath.rollout.renderer.base import AssistantMessage, MalformedCall, Opening, ToolResult
from polymath.rollout.renderer.polymath import (
    ARGS,
    ASSISTANT,
    CALL,
    CALL_END,
    END,
    THINK,
    THINK_END,
    USER,
    PolymathRenderer,
)
from polymath.rollout.renderer.tokenizer import (
    RESERVED,
    SMALLEST,
    SPECIAL_TOKENS,
    TokenizerError,
    load_tokenizer,
    train_tokenizer,
)

CORPUS = [
    'List the files. {"command":"ls -l"} {"command":"cat notes.txt"}',
    '{"name":"bash","description":"Run a command","parameters":{"type":"object"}}',
    "the total of column B is 1234; the answer is 42",
]
marks = st.sampled_from(SPECIAL_TOKENS)
words = st.one_of(st.text(max_size=12), marks, st.sampled_from(CORPUS))
texts = st.lists(words, max_size=4).map("".join)
names = texts.filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | texts
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ids = st.from_regex(r"[0-9a-z]{1,4}", fullmatch=True)


@st.composite
def messages(draw: st.DrawFn) -> AssistantMessage:
    """Any well-formed assistant message."""
    call_ids = draw(st.lists(ids, max_size=3, unique=True))
    arguments = st.dictionaries(texts, json_values, max_size=3)
    calls = tuple(ToolCall(id, draw(names), draw(arguments)) for id in call_ids)
    return AssistantMessage(draw(texts), draw(texts), calls, complete=True)


@given(messages())
def test_parsing_inverts_rendering(renderer: PolymathRenderer, message: AssistantMessage) -> None:
    assert renderer.parse(renderer.assistant(message)) == message


@given(texts)
def test_text_round_trips_and_holds_no_special_token(
    renderer: PolymathRenderer, value: str
) -> None:
    tokens = renderer.encode_text(value)
    assert renderer.decode(tokens) == value
    assert all(RESERVED <= token < renderer.vocab_size for token in tokens)


@settings(max_examples=400)
@given(st.data())
def test_token_soup_never_raises(renderer: PolymathRenderer, data: st.DataObject) -> None:
    token = st.integers(0, 17) | st.integers(-3, renderer.vocab_size + 3)
    tokens = data.draw(st.lists(token, max_size=40))
    message = renderer.parse(tokens)
    renderer.decode(tokens)
    for call in message.calls:
        assert call.id
        if isinstance(call, MalformedCall):
            assert call.error and "\n" not in call.error and len(call.error) < 200
        else:
            json.dumps(call.arguments, allow_nan=False).encode()


@given(st.lists(messages(), max_size=3), texts, st.sampled_from(Effort))
def test_tokens_only_append(
    renderer: PolymathRenderer, turns: list[AssistantMessage], prompt: str, effort: Effort
) -> None:
    """The context of turn n starts with the context of turn n-1, and each turn can be cut out of
    the whole by its marks, whatever the texts say."""
    tool = ToolSpec("bash", "Run a command", {"type": "object"})
    context = renderer.opening(Opening("Do it.", (tool,), effort, text(prompt)))
    assert context == renderer.opening(Opening("Do it.", (tool,), effort, text(prompt)))
    assert context.count(END) == 2 and context.count(USER) == 1 and context[-1] == ASSISTANT
    for number, message in enumerate(turns, 1):
        before = list(context)
        results = [ToolResult(call.id, text(f"{prompt}!")) for call in message.calls]
        context += renderer.assistant(message) + renderer.results(results)
        assert context[: len(before)] == before
        assert context.count(ASSISTANT) == number + 1
        assert context[-1] == ASSISTANT


def test_reloading_keeps_text_ordinary(renderer: PolymathRenderer, tmp_path: Path) -> None:
    """``encode_special_tokens`` is not part of the file; loading must set it again."""
    file = tmp_path / "tokenizer.json"
    tokenizer = train_tokenizer(CORPUS, SMALLEST)
    tokenizer.save(str(file))
    for token in SPECIAL_TOKENS:
        assert min(load_tokenizer(file).encode(token).ids) >= RESERVED


def test_pieces_are_digits_spaces_words_and_escapes(renderer: PolymathRenderer) -> None:
    whole = train_tokenizer([r'{"command":"a\nls  12"}'] * 9, SMALLEST + 12)
    pieces = [whole.decode([index]) for index in whole.encode(r'{"command":"a\nls  12"}').ids]
    assert pieces == ['{"', "command", '":"', "a", r"\n", "ls", " ", " ", "1", "2", '"}']


def test_training_is_repeatable() -> None:
    first, second = (train_tokenizer(CORPUS, SMALLEST + 40).to_str() for _ in range(2))
    assert first == second


def test_tokenizer_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="too small"):
        train_tokenizer(CORPUS, 100)
    with pytest.raises(TokenizerError, match="add texts"):
        train_tokenizer(["ab"], 4096)
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        PolymathRenderer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version":')
    with pytest.raises(TokenizerError, match="not a tokenizer file"):
        PolymathRenderer(tmp_path)


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[1]", "must be a JSON object, not list"),
        ('{"a":NaN}', "cannot write"),
        ('{"a":1e999}', "cannot write"),
        ('{"a":"\\ud800"}', "cannot write"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' + "9" * 5000 + "}", "too long a number"),
    ],
)
def test_bad_arguments(renderer: PolymathRenderer, inner: str, error: str) -> None:
    head, body = renderer.encode_text("bash:0"), renderer.encode_text(inner)
    (call,) = renderer.parse([CALL, *head, ARGS, *body, CALL_END, END]).calls
    assert isinstance(call, MalformedCall) and error in call.error and call.id == "0"


def test_broken_structure_is_a_malformed_call(renderer: PolymathRenderer) -> None:
    name, body = renderer.encode_text("bash:0"), renderer.encode_text("{}")
    nameless = renderer.encode_text("bash")
    call = [CALL, *name, ARGS, *body, CALL_END]
    broken = {
        "exactly one mark": [CALL, *name, *body, CALL_END, END],
        "not closed with": [CALL, *name, ARGS, *body, END],
        "NAME:ID": [CALL, *nameless, ARGS, *body, CALL_END, END],
        "was not closed": [THINK, *name, END],
        "inside the thinking section": [THINK, *name, *call, END],
        "outside a call": [*name, USER, *name, END],
        "unexpected": [THINK, THINK_END, *name, THINK, *name, THINK_END, END],
    }
    for error, tokens in broken.items():
        (found,) = renderer.parse(tokens).calls
        assert isinstance(found, MalformedCall) and error in found.error, error
    first, second = renderer.parse([*call, *call, END]).calls
    assert first == ToolCall("0", "bash", {})
    assert isinstance(second, MalformedCall) and "used twice" in second.error
    first, second = renderer.parse([*call, *body, END]).calls
    assert isinstance(second, MalformedCall) and "outside a call" in second.error


def test_an_image_is_a_placeholder_with_a_stable_digest(renderer: PolymathRenderer) -> None:
    image = Image("ab" * 32, "image/png", 640, 480)
    shown = renderer.decode(
        renderer.results([ToolResult("7", (Text("see "), image, Text(" above")))])
    )
    assert shown == (
        "<|tool|>7<|sep|>see <|image|>640x480 abababababab<|/image|> above<|end|><|assistant|>"
    )


def test_an_unfinished_turn_is_not_complete(renderer: PolymathRenderer) -> None:
    message = renderer.parse(renderer.encode_text("half a sent"))
    assert message == AssistantMessage("", "half a sent", (), complete=False)
