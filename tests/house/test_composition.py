"""Overrides, files and schemas become one typed tree, or one line that says what is wrong."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymath.configs import Composed, Section, compose, forget_reads, parse, reads, unread
from polymath.configs.composition import TREE
from polymath.configs.typed import nearest
from polymath.errors import UserError

SCHEMA = """
from __future__ import annotations
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal
from polymath.configs import Section

class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"

@dataclass(frozen=True)
class Motor(Section):
    speed: float = 1.0
    threads: int = 2

@dataclass(frozen=True)
class Rotary(Motor):
    pistons: int = 3

    def __post_init__(self) -> None:
        if self.pistons < 1:
            raise ValueError(f"pistons is {self.pistons}, expected at least 1")

@dataclass(frozen=True)
class Share(Section):
    weight: float = 1.0

@dataclass(frozen=True)
class Toy(Section):
    steps: int = 5
    name: str = "toy"
    folder: Path = Path("runs")
    quiet: bool = False
    colour: Colour = Colour.RED
    mode: Literal["on", "off"] = "on"
    limit: int | None = None
    pair: tuple[int, float] = (1, 2.0)
    levels: tuple[int, ...] = ()
    motor: Motor = field(default_factory=Motor)
    shares: dict[str, Share] = field(default_factory=dict)
"""

FILES = {
    "toy.yaml": """
        _schema_: polymath_toy_schema:Toy
        defaults:
          - _self_
          - motor: plain
          - experiment: null
    """,
    "motor/plain.yaml": "threads: 1",
    "motor/rotary.yaml": """
        _schema_: polymath_toy_schema:Rotary
        speed: 4.0
    """,
    "experiment/fast.yaml": """
        # @package _global_
        defaults:
          - override /motor: rotary
        name: ${colour}-fast
        motor:
          speed: 9
        shares:
          a/b: {}
    """,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of configuration with a schema of its own."""
    folder = tmp_path_factory.mktemp("tree")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


@pytest.fixture(autouse=True)
def _schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polymath_toy_schema.py").write_text(SCHEMA)
    monkeypatch.syspath_prepend(str(tmp_path))


def toy(tree: Path, *overrides: str) -> Composed:
    return compose("toy", overrides, config_dir=tree)


def message(tree: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        toy(tree, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_come_from_the_schema_and_choices_from_the_files(tree: Path) -> None:
    config = toy(tree).config.to_dict()
    assert config["steps"] == 5
    assert config["motor"] == {"speed": 1.0, "threads": 1}


def test_a_group_chooses_its_schema(tree: Path) -> None:
    motor = toy(tree, "motor=rotary", "motor.pistons=6").config.motor  # type: ignore[attr-defined]
    assert type(motor).__name__ == "Rotary"
    assert (motor.speed, motor.pistons, motor.threads) == (4.0, 6, 2)


def test_the_command_line_wins_over_the_experiment_and_that_over_the_group(tree: Path) -> None:
    config = toy(tree, "experiment=fast", "steps=7").config.to_dict()
    assert config["motor"]["speed"] == 9.0
    assert config["name"] == "red-fast"
    assert toy(tree, "experiment=fast", "motor.speed=2").config.to_dict()["motor"]["speed"] == 2.0


def test_values_get_the_types_of_the_schema(tree: Path) -> None:
    config = toy(
        tree, "motor.speed=3", "name=12", "folder=/tmp/x", "colour=blue", "limit=4",
        "pair=[3,4]", "levels=[1,2]", "mode=off", "quiet=true", "shares.a/b.weight=2",
    ).config  # fmt: skip
    values = dict(config.items())
    assert isinstance(config, Section)
    assert values["name"] == "12"
    assert values["folder"] == Path("/tmp/x")
    assert values["colour"].name == "BLUE"
    assert (values["limit"], values["pair"], values["levels"]) == (4, (3, 4.0), (1, 2))
    assert isinstance(values["pair"][1], float)
    assert (values["mode"], values["quiet"]) == ("off", True)
    assert values["shares"]["a/b"].to_dict() == {"weight": 2.0}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("motor.sped=1", "unknown configuration key motor.sped; did you mean motor.speed?"),
        ("speed=1", "unknown configuration key speed; did you mean motor.speed?"),
        ("stps=1", "unknown configuration key stps; did you mean steps?"),
        ("motr.speed=1", "unknown configuration key motr; did you mean motor?"),
        ("motor.qqq=1", "unknown configuration key motor.qqq; did you mean motor?"),
        ("zzz=1", "unknown configuration key zzz; --dry-run lists all keys"),
        ("motor=rotry", "unknown option motor=rotry; did you mean motor=rotary?"),
        ("motor=7", "unknown option motor=7; there are plain, rotary"),
        ("steps=many", "configuration key steps expects a whole number, not 'many'"),
        ("steps=1.5", "configuration key steps expects a whole number, not 1.5"),
        ("steps=true", "configuration key steps expects a whole number, not True"),
        ("steps=inf", "configuration key steps expects a whole number, not inf"),
        ("quiet=1", "configuration key quiet expects true or false, not 1"),
        ("limit=x", "configuration key limit expects a whole number or null, not 'x'"),
        ("pair=[1]", "configuration key pair expects 2 values, not 1"),
        ("levels=[1,x]", "configuration key levels.1 expects a whole number, not 'x'"),
        ("levels=3", "configuration key levels expects a list, not 3"),
        (
            "shares.a/b.wait=1",
            "unknown configuration key shares.a/b.wait; did you mean shares.a/b.weight?",
        ),
        (
            "colour=bleu",
            "configuration key colour is one of red, blue, not 'bleu'; did you mean blue?",
        ),
        (
            "+motor.new=1",
            "+motor.new=1: keys cannot be added or removed; only known keys can be set",
        ),
        ("~motor", "'~motor' is not an override; write key=value"),
        ("steps=1,2", "steps=1,2: one value at a time; lists are written [a,b]"),
        ("steps", "'steps' is not an override; write key=value"),
        ("name='x", 'cannot read the value of name: "\'x"'),
        ("name=${nobody}", "configuration: Interpolation key 'nobody' not found (at name)"),
        ("motor=null", "unknown option motor=null; there are plain, rotary"),
    ],
)
def test_a_mistake_is_one_line(tree: Path, override: str, expected: str) -> None:
    assert message(tree, override) == expected


def test_a_schema_refuses_values_in_its_own_words(tree: Path) -> None:
    text = message(tree, "motor=rotary", "motor.pistons=0")
    assert text == "motor: pistons is 0, expected at least 1"


def test_a_broken_file_is_one_line(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "motor").mkdir()
    (tmp_path / "motor" / "bad.yaml").write_text("a: [")
    (tmp_path / "toy.yaml").write_text((tree / "toy.yaml").read_text())
    (tmp_path / "motor" / "plain.yaml").write_text("threads: 1")
    (tmp_path / "experiment").mkdir()
    with pytest.raises(UserError, match=r"bad\.yaml, line 1"):
        compose("toy", ["motor=bad"], config_dir=tmp_path)


def test_a_file_may_not_hide_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "quickstart.yaml").write_text("steps: 1")
    with pytest.raises(UserError, match="rename it"):
        compose("train", [], config_dir=tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        compose("train", [], config_dir=tmp_path / "absent")


def test_chosen_keys_that_nobody_read_are_named(tree: Path) -> None:
    forget_reads()
    composed = toy(tree, "experiment=fast", "motor.pistons=4", "levels=[1]", "shares.a/b.weight=3")
    expected = {"name", "motor.speed", "motor.pistons", "levels", "shares.a/b.weight"}
    assert composed.chosen == expected
    config = composed.config
    assert config.name == "red-fast"  # type: ignore[attr-defined]
    assert config.motor.speed == 9.0  # type: ignore[attr-defined]
    assert unread(composed, reads() | {"levels"}) == ["motor.pistons", "shares.a/b.weight"]
    assert config.shares["a/b"].weight == 3.0  # type: ignore[attr-defined]
    assert unread(composed, reads() | {"levels", "motor.pistons"}) == []
    assert unread(composed, {*expected, "motor"} - {"motor.speed", "motor.pistons"}) == []


def test_what_a_run_wrote_down_reads_back_equal(tree: Path) -> None:
    composed = toy(tree, "experiment=fast", "motor.pistons=4", "levels=[1]", "mode=off")
    again = parse(composed.yaml)
    assert again.config == composed.config
    assert again.yaml == composed.yaml


@given(st.text("abcdefg_.", min_size=1, max_size=12))
def test_a_known_key_is_nearest_to_itself(key: str) -> None:
    assert nearest(key, ["steps", "motor.speed", key]) == key


def shipped_options() -> list[str]:
    """``group=option`` for every YAML file of the tree below the commands' own files."""
    files = sorted(TREE.glob("*/*.yaml"))
    return [f"{f.parent.name}={f.stem}" for f in files if f.parent.name != "experiment"]


@pytest.mark.parametrize("option", shipped_options())
def test_every_shipped_option_composes(option: str) -> None:
    config = compose("train", [option]).config.to_dict()
    assert isinstance(config[option.partition("=")[0]], dict)


@pytest.mark.parametrize(
    ("command", "experiment"),
    [("train", "quickstart"), ("train", "smoke"), ("eval", "quickstart"), ("sft", "starter")],
)
def test_every_shipped_experiment_composes(command: str, experiment: str) -> None:
    composed = compose(command, [f"experiment={experiment}"])
    assert composed.config.to_dict()["run"]["name"] == experiment
    assert parse(composed.yaml).config == composed.config
