"""No configuration key is decoration: the code reads every field of every schema."""

import ast
import dataclasses
import typing
from pathlib import Path

import pytest

from polymath.configs import Section
from polymath.model.config import ModelConfig
from polymath.rl.schema import SupervisedConfig, TrainConfig

ROOT = Path(__file__).parents[2]
FOLDERS = ("envs", "model", "rewards", "rl", "rollout")


def sections(schema: type) -> set[type]:
    """The schema and all sections inside it."""
    found = {schema}
    for hint in typing.get_type_hints(schema).values():
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and issubclass(part, Section):
                found |= sections(part)
    return found


def attributes_read() -> set[str]:
    names = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
    return names


READ = attributes_read()


@pytest.mark.parametrize(
    "schema",
    sorted(
        # The fields of ModelConfig are those of config.json, which other tools read as well.
        (sections(TrainConfig) | sections(SupervisedConfig)) - {ModelConfig},
        key=lambda schema: schema.__name__,
    ),
    ids=lambda schema: schema.__name__,
)
def test_every_field_of_a_schema_is_read_somewhere(schema: type) -> None:
    names = {field.name for field in dataclasses.fields(schema)}
    assert not names - READ
