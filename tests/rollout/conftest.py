"""What the rollout tests share: a renderer over a small tokenizer, and the stand-ins beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.renderer.tokenizer import SMALLEST, train_tokenizer

# Tests are imported by path; the modules beside them (stand-ins for failure tests) by name.
sys.path.insert(0, str(Path(__file__).parent))

# The machine is shared: how long one example takes says nothing.
settings.register_profile("rollout", deadline=None)
settings.load_profile("rollout")

CORPUS = [
    'List the files. {"command":"ls -l"} {"command":"cat notes.txt"}',
    '{"name":"bash","description":"Run a command","parameters":{"type":"object"}}',
    "the total of column B is 1234; the answer is 42",
]


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> PolymathRenderer:
    """A renderer over a small trained tokenizer that went through its file."""
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(CORPUS * 3, SMALLEST + 40).save(str(file))
    return PolymathRenderer(file.parent)
