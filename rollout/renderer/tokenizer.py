"""The tokenizer of the ``polymath`` chat format: byte-level BPE under a block of special tokens.

The special tokens are the first 64 ids, whatever the vocabulary, so that a new mark never moves the
ids of text. Ordinary text never encodes to a special token: a tool's output may contain ``<|end|>``
letter by letter and still cannot close a turn. Digits are single, and so is each white-space
character: every word then has one form to copy, wherever it stands.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from polymath.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RESERVED = 64
"""How many ids at the start of every vocabulary belong to special tokens."""

_NAMED = (
    "pad", "end", "system", "user", "assistant", "tool", "think", "/think", "call", "args", "/call",
    "tools", "sep", "effort_low", "effort_high", "effort_max", "image", "/image",
)  # fmt: skip

SPECIAL_TOKENS: tuple[str, ...] = tuple(f"<|{name}|>" for name in _NAMED) + tuple(
    f"<|reserved_{index}|>" for index in range(len(_NAMED), RESERVED)
)
"""The special tokens in the order of their ids."""

SMALLEST = RESERVED + 256
"""The smallest vocabulary: special tokens and the 256 bytes."""

# JSON escapes stand alone, so that "\nword" is an escape and a word. Letters, single digits, single
# white-space characters; then runs of punctuation, which merge into pieces such as `":"` and `"}`.
_PIECES = r"""\\[a-z"\\/]?|\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}\\]+"""


class TokenizerError(UserError):
    """A tokenizer that does not fit the chat format; the message says what to do."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly ``vocab_size`` ids (specials, bytes, then merges) from these texts.

    Raises ``TokenizerError`` when the texts hold too few merges, or the size is below ``SMALLEST``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST:
        raise TokenizerError(f"a vocabulary of {vocab_size} is too small; take at least {SMALLEST}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise TokenizerError(
            f"the texts give only {tokenizer.get_vocab_size()} of {vocab_size} tokens; "
            "add texts or lower the vocabulary size"
        )
    return _checked(tokenizer, "the trained tokenizer")


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``, or of a folder that holds one.

    Raises ``TokenizerError`` when the file is missing, unreadable or not of this format.
    """
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"no tokenizer at {file}; give a tokenizer.json or its folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{file} is not a tokenizer file: {error}") from error
    return _checked(tokenizer, str(file))


def _checked(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """The tokenizer with the format's rules enforced; the file format does not keep all of them."""
    for index, token in enumerate(SPECIAL_TOKENS):
        if tokenizer.token_to_id(token) != index:
            raise TokenizerError(
                f"{name}: {token} has id {tokenizer.token_to_id(token)}, not {index}; "
                "train it with train_tokenizer"
            )
    tokenizer.encode_special_tokens = True  # not saved in tokenizer.json
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if tokenizer.encode(SPECIAL_TOKENS[1], add_special_tokens=True).ids == [1]:
        raise TokenizerError(f"{name}: text encodes to special tokens")
    return tokenizer


def byte_pieces(tokenizer: Tokenizer) -> list[bytes]:
    """For each id the bytes that it stands for; a special token stands for its visible name."""
    of_letter = {letter: byte for byte, letter in enumerate(_byte_letters())}
    pieces = [b""] * tokenizer.get_vocab_size()
    for token, index in tokenizer.get_vocab().items():
        if index < RESERVED:
            pieces[index] = token.encode()
        else:
            pieces[index] = bytes(of_letter[letter] for letter in token)
    return pieces


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte (the GPT-2 alphabet):
    printable Latin-1 stands for itself, the rest moves to the code points from 256 on.
    """
    letters, moved = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + moved))
            moved += 1
    return letters
