"""From plain nested data to frozen configuration dataclasses, with one-line errors.

A mapping may hold ``_schema_: package.module:Class`` beside its keys; the class must derive from the
one that the parent declares. That is how a group such as ``learner`` has variants with keys of their own.
"""

from __future__ import annotations

import collections.abc
import difflib
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from polymath.configs.section import Section
from polymath.errors import UserError

SCHEMA = "_schema_"
"""The key that names the dataclass of a mapping."""

_SEQUENCES = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


def find_schema(reference: str) -> type[Section]:
    """The schema class that ``package.module:Class`` names."""
    module, _, name = reference.partition(":")
    try:
        schema = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot load the schema {reference}: {error}") from error
    if not (isinstance(schema, type) and issubclass(schema, Section)):
        raise UserError(f"{reference} is not a configuration schema (a subclass of Section)")
    return schema


def defaults(schema: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's default values as plain data, following the variants that ``data`` chooses."""
    plain: dict[str, Any] = {}
    for name, field, hint in _fields(schema):
        given = data.get(name)
        nested = _section_of(hint)
        variant = _variant(nested, given, name) if nested is not None else None
        default = _default(field)
        if variant is not None and not isinstance(default, variant):
            plain[name] = defaults(variant, given if isinstance(given, Mapping) else {})
        elif default is not MISSING:
            plain[name] = to_plain(default)
    return plain


def build(schema: type, data: Any, path: str = "") -> Any:
    """An instance of a schema from plain data; ``path`` is where it stands in the tree.

    Raises ``UserError`` in one line for an unknown key, a missing or wrong value.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{path or 'the configuration'} must be a group of keys, not {data!r}")
    schema = _variant(schema, data, path)
    known = {name: (field, hint) for name, field, hint in _fields(schema)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name == SCHEMA:
            continue
        if name not in known:
            raise UnknownKey(_join(path, str(name)))
        values[name] = _convert(known[name][1], value, _join(path, str(name)))
    for name, (field, _) in known.items():
        if name not in values and _default(field) is MISSING:
            raise UserError(f"configuration key {_join(path, name)} needs a value")
    try:
        return schema(**values)
    except ValueError as error:
        raise UserError(f"{path + ': ' if path else ''}{error}") from error


class UnknownKey(UserError):
    """A key that no schema has. ``key`` is its full path."""

    def __init__(self, key: str, nearest: str | None = None) -> None:
        hint = f"did you mean {nearest}?" if nearest else "--dry-run lists all keys"
        super().__init__(f"unknown configuration key {key}; {hint}")
        self.key = key


def key_paths(schema: type, data: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every key of a schema as a full dotted path, sections and values alike."""
    for name, _, hint in _fields(_variant(schema, data, path)):
        where = _join(path, name)
        yield where
        inner = data.get(name)
        inner = inner if isinstance(inner, Mapping) else {}
        nested = _section_of(hint)
        if nested is not None:
            yield from key_paths(nested, inner, where)
        elif get_origin(hint) in _MAPPINGS:
            item = _section_of(get_args(hint)[1])
            for key, value in inner.items():
                yield _join(where, str(key))
                if item is not None and isinstance(value, Mapping):
                    yield from key_paths(item, value, _join(where, str(key)))


def nearest(word: str, known: list[str]) -> str | None:
    """The known name that a mistyped one most likely meant: by its whole, or by its last part."""
    last = word.rsplit(".", 1)[-1]
    candidates = [name for name in known if name.rsplit(".", 1)[-1] == last]
    pool = candidates or known
    found = difflib.get_close_matches(word, pool, n=1, cutoff=0.0 if len(candidates) == 1 else 0.6)
    if found:
        return found[0]
    by_last = {name.rsplit(".", 1)[-1]: name for name in known}
    close = difflib.get_close_matches(last, by_last, n=1, cutoff=0.75)
    return by_last[close[0]] if close else None


def to_plain(value: Any) -> Any:
    """A configuration value as YAML knows it; variants of sections keep their ``_schema_``."""
    if is_dataclass(value) and not isinstance(value, type):
        # Read past the record of reads: showing a value is not using it.
        attributes = object.__getattribute__(value, "__dict__") if _dynamic(value) else None
        plain: dict[str, Any] = {}
        for name, _, hint in _fields(type(value)):
            inner = attributes[name] if attributes is not None else getattr(value, name)
            plain[name] = to_plain(inner)
            declared = _section_of(hint)
            if declared is not None and isinstance(inner, declared) and type(inner) is not declared:
                plain[name] = {SCHEMA: reference(type(inner)), **plain[name]}
        return plain
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def reference(schema: type) -> str:
    """``package.module:Class`` of a schema."""
    return f"{schema.__module__}:{schema.__qualname__}"


def _dynamic(value: Any) -> bool:
    return isinstance(value, Section)


@cache
def _fields(schema: type) -> tuple[tuple[str, Field[Any], Any], ...]:
    hints = get_type_hints(schema)
    return tuple((f.name, f, hints[f.name]) for f in fields(schema) if f.init)


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else MISSING


def _section_of(hint: Any) -> type | None:
    """The dataclass behind a field's type (``X`` or ``X | None``), or None."""
    for option in (hint, *get_args(hint)) if _is_union(hint) else (hint,):
        if isinstance(option, type) and is_dataclass(option):
            return option
    return None


def _variant(declared: type, data: Any, path: str) -> type:
    named = data.get(SCHEMA) if isinstance(data, Mapping) else None
    if named is None:
        return declared
    schema = find_schema(str(named))
    if not issubclass(schema, declared):
        raise UserError(f"{path}: {named} is not a variant of {declared.__name__}")
    return schema


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _convert(hint: Any, value: Any, path: str) -> Any:
    """``value`` as the type ``hint``; raises ``UserError``."""
    if hint is Any:
        return value
    if _is_union(hint):
        return _convert_union(hint, value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        return build(hint, value, path)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return _choice(value, list(arguments), path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_choice(value, [member.value for member in hint], path))
    if origin in _MAPPINGS and isinstance(value, Mapping):
        key_type, item_type = arguments or (Any, Any)
        return {
            _convert(key_type, key, path): _convert(item_type, item, _join(path, str(key)))
            for key, item in value.items()
        }
    if origin in _SEQUENCES and isinstance(value, list | tuple):
        return _convert_sequence(origin, arguments, value, path)
    return _convert_scalar(hint, value, path)


def _convert_scalar(hint: Any, value: Any, path: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is type(None) and value is None:
        return None
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and number and math.isfinite(value) and value == int(value):
        return int(value)
    if hint is float and number:
        return float(value)
    if hint is str and (isinstance(value, str) or number):
        return str(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    raise UserError(f"configuration key {path} expects {_name(hint)}, not {value!r}")


def _convert_union(hint: Any, value: Any, path: str) -> Any:
    options = sorted(get_args(hint), key=lambda option: option is not type(value))
    first: UserError | None = None
    for option in options:
        try:
            return _convert(option, value, path)
        except UserError as error:
            # What went wrong inside a section says more than that no option fits.
            if isinstance(error, UnknownKey) or isinstance(value, Mapping):
                first = first or error
    if first is not None:
        raise first
    raise UserError(f"configuration key {path} expects {_name(hint)}, not {value!r}")


def _convert_sequence(origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(arguments) != len(value):
            raise UserError(
                f"configuration key {path} expects {len(arguments)} values, not {len(value)}"
            )
        types_of = arguments
    else:
        types_of = (arguments[0] if arguments else Any,) * len(value)
    items = [
        _convert(hint, item, _join(path, str(index)))
        for index, (hint, item) in enumerate(zip(types_of, value, strict=True))
    ]
    return items if origin is list else tuple(items)


def _choice(value: Any, options: list[Any], path: str) -> Any:
    # YAML reads `off` and `on` as truth values.
    words = {True: "on", False: "off"}
    for candidate in (value, words.get(value) if isinstance(value, bool) else None):
        if candidate in options and type(candidate) in {type(option) for option in options}:
            return candidate
    close = nearest(str(value), [str(option) for option in options])
    hint = f"; did you mean {close}?" if close else ""
    listed = ", ".join(str(option) for option in options)
    raise UserError(f"configuration key {path} is one of {listed}, not {value!r}{hint}")


def _name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if _is_union(hint):
        return " or ".join(_name(option) for option in get_args(hint))
    if hint is type(None):
        return "null"
    origin = get_origin(hint) or hint
    if origin in _MAPPINGS:
        return "a group of keys"
    if origin in _SEQUENCES:
        return "a list"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
