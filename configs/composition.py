"""Composes the configuration of a command from the Hydra tree, overrides and typed schemas.

Hydra chooses among the YAML files (``learner=fsdp``, ``experiment=quickstart``); the schemas bring the
defaults and the types. What the user set, on the command line or in an experiment file, is
remembered, so that a key that nothing ever read can be reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from polymath.configs.section import Section, bind
from polymath.configs.typed import (
    SCHEMA,
    UnknownKey,
    build,
    defaults,
    find_schema,
    key_paths,
    nearest,
    reference,
    to_plain,
)
from polymath.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

TREE = Path(__file__).resolve().parent
"""The folder of the shipped YAML files."""

EXPERIMENTS = "experiment"
"""The group whose files hold keys that somebody chose on purpose, as on the command line."""


@dataclass(frozen=True)
class Composed:
    """A command's configuration, checked and typed."""

    config: Section
    """The tree of frozen sections; every section knows its path."""
    chosen: frozenset[str]
    """Full paths of the values that the command line or an experiment file set."""
    yaml: str
    """The whole resolved configuration; `parse` reads it again."""


def compose(
    command: str, overrides: Iterable[str] = (), *, config_dir: Path | None = None
) -> Composed:
    """The configuration of ``command`` (the name of a YAML file at the top of the tree).

    ``overrides`` are ``group=option`` and ``key.path=value`` in Hydra's grammar; ``config_dir`` is a
    folder with further groups and experiments. Raises ``UserError`` with one line.
    """
    tree = _Tree(config_dir)
    choices: list[str] = []
    values: list[tuple[str, Any]] = []
    for override in overrides:
        key, value = _parse(override)
        if key in tree.groups and not isinstance(value, Mapping):
            if key == EXPERIMENTS and value is None:
                continue
            tree.check_option(key, "null" if value is None else str(value))
            choices.append(f"{key}={value}")
        else:
            values.append((key, value))
    composed = tree.compose(command, choices)
    experiment = next((c.partition("=")[2] for c in choices if c.startswith(EXPERIMENTS + "=")), "")
    chosen = {path for key, value in values for path in _leaves(value, key)}
    chosen |= tree.experiment_keys(experiment)
    return _resolve(composed, values, chosen)


def parse(text: str) -> Composed:
    """The configuration that a run wrote down (`Composed.yaml`), typed again."""
    from omegaconf import OmegaConf

    return _resolve(cast("DictConfig", OmegaConf.create(text)), [], set())


def unread(composed: Composed, reads: Iterable[str]) -> list[str]:
    """The chosen keys that no process read, given the union of all processes' ``reads``."""
    seen = set(reads)
    return sorted(key for key in composed.chosen if not seen.intersection(_upwards(key)))


def _resolve(composed: DictConfig, values: list[tuple[str, Any]], chosen: set[str]) -> Composed:
    """Lay overrides and schema defaults around what Hydra composed, and check it all."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    schema = find_schema(str(composed.get(SCHEMA)))
    try:
        for key, value in values:
            _set(composed, key, value)
        # Twice: the first pass tells which variants are chosen, the second has their defaults.
        given = cast("dict[str, Any]", OmegaConf.to_container(composed))
        merged = OmegaConf.merge(OmegaConf.create(defaults(schema, given)), composed)
        plain = cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=True))
    except OmegaConfBaseException as error:
        raise UserError(f"configuration: {_first_line(error)}") from error
    try:
        config = bind(build(schema, plain))
    except UnknownKey as error:
        known = list(key_paths(schema, plain))
        raise UnknownKey(error.key, nearest(error.key, known)) from error
    resolved = {SCHEMA: reference(type(config)), **to_plain(config)}
    text = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=100)
    return Composed(config=config, chosen=frozenset(chosen), yaml=text)


class _Tree:
    """The YAML files: ours, and those of a folder that the user names."""

    def __init__(self, config_dir: Path | None) -> None:
        self.folders = [TREE]
        if config_dir is not None:
            if not config_dir.is_dir():
                raise UserError(f"--config-dir {config_dir} is not a folder")
            self.folders.append(config_dir.resolve())
        self.options: dict[str, dict[str, Path]] = {}
        for folder in self.folders:
            for file in sorted(folder.rglob("*.yaml")):
                group = file.parent.relative_to(folder).as_posix()
                other = self.options.setdefault(group, {}).setdefault(file.stem, file)
                if other != file:
                    raise UserError(f"{file} has the name of a shipped file; rename it")
        self.groups = self.options.keys() - {"."}

    def check_option(self, group: str, option: str) -> None:
        """Refuse an option that no file of the group provides."""
        known = self.options[group]
        if option in known:
            return
        close = nearest(option, list(known))
        hint = f"did you mean {group}={close}?" if close else f"there are {', '.join(known)}"
        raise UserError(f"unknown option {group}={option}; {hint}")

    def compose(self, command: str, choices: list[str]) -> DictConfig:
        """What Hydra makes of the command's file and the chosen options."""
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        root = self.options["."].get(command)
        if root is None:
            raise UserError(f"there is no {command}.yaml in {self.folders[-1]}")
        # Hydra wants the command's own file in its main folder; options may lie in any.
        others = [folder for folder in self.folders if folder != root.parent]
        extra = [f"hydra.searchpath=[file://{folder}]" for folder in others]
        try:
            with initialize_config_dir(str(root.parent), version_base="1.3"):
                composed = hydra_compose(command, overrides=[*choices, *extra])
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise UserError(f"configuration: {_first_line(error)}") from error
        OmegaConf.set_struct(composed, False)
        return composed

    def experiment_keys(self, experiment: str) -> set[str]:
        """The values that an experiment's file sets itself, as full paths."""
        from omegaconf import OmegaConf

        file = self.options.get(EXPERIMENTS, {}).get(experiment)
        if file is None:
            return set()
        data = OmegaConf.to_container(OmegaConf.load(file))
        assert isinstance(data, dict)
        data.pop("defaults", None)
        return set(_leaves(data, ""))


def _parse(override: str) -> tuple[str, Any]:
    """``key=value`` with the value read by Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"{override!r} is not an override; write key=value")
    if key[0] in "+~":
        raise UserError(f"{override}: keys cannot be added or removed; only known keys can be set")
    try:
        # The key is ours to read: ids of domains hold slashes, which Hydra takes for groups.
        parsed = OverridesParser.create().parse_override(f"key={text}")
        if parsed.is_sweep_override():
            raise UserError(f"{override}: one value at a time; lists are written [a,b]")
        return key, _unquoted(parsed.value())
    except HydraException as error:
        raise UserError(f"cannot read the value of {key}: {text!r}") from error


def _unquoted(value: Any) -> Any:
    """Hydra's parsed values as plain data."""
    if isinstance(value, Mapping):
        return {_unquoted(key): _unquoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    return getattr(value, "text", value)


def _set(composed: DictConfig, key: str, value: Any) -> None:
    from omegaconf import OmegaConf

    OmegaConf.update(composed, key, value, merge=True, force_add=True)


def _leaves(value: Any, path: str) -> Iterator[str]:
    """Full paths of the plain values in nested data; an empty mapping sets nothing."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != SCHEMA:
                yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path


def _upwards(key: str) -> Iterator[str]:
    """A key and the paths above it: reading a whole mapping reads what is in it."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _first_line(error: Exception) -> str:
    """What an error of Hydra, OmegaConf or the YAML reader says, with the place if it knows one."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"{mark.name}, line {mark.line + 1}: {getattr(error, 'problem', 'not YAML')}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = getattr(error, "full_key", None)
    return (lines[0] if lines else type(error).__name__) + (f" (at {key})" if key else "")
