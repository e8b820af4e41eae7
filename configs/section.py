"""The base class of every configuration schema: a frozen dataclass that knows which keys were read.

    @dataclass(frozen=True)
    class LearnerConfig(Section):
        learning_rate: float = 1e-4
        "Peak learning rate of the optimizer."

A key that somebody set and no component ever read is a mistake that nobody would notice, so composed
sections know their path in the tree and record each read of a field, per process. Components read
their fields once, in the constructor; sections travel to other processes by pickle and record there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

_READS: set[str] = set()


class Section:
    """Base of configuration dataclasses. Declare subclasses with ``@dataclass(frozen=True)``, without
    ``slots``; read-recording starts once ``bind`` has told an instance its path."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep ``repr`` and ``==`` of subclasses from counting as reads."""
        super().__init_subclass__(**kwargs)
        for name in ("__repr__", "__eq__"):
            if name not in cls.__dict__:
                setattr(cls, name, Section.__dict__[name])

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name[0] != "_":
            attributes = object.__getattribute__(self, "__dict__")
            if "_path" in attributes and name in attributes and not any(_sections(value)):
                _READS.add(_join(attributes["_path"], name))
        return value

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"{type(self).__name__}({body})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section) or type(self) is not type(other):
            return NotImplemented
        return dict(self.items()) == dict(other.items())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Field names and values, in order, without counting as reads."""
        for name, value in object.__getattribute__(self, "__dict__").items():
            if name != "_path":
                yield name, value

    def to_dict(self) -> dict[str, Any]:
        """The section as plain nested dictionaries, without counting as reads."""
        return {name: _plain(value) for name, value in self.items()}

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; it keeps its path. Does not count as a read."""
        values = dict(self.items())
        unknown = changes.keys() - values.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        changed = type(self)(**{**values, **changes})
        path = object.__getattribute__(self, "__dict__").get("_path")
        return changed if path is None else bind(changed, path)


S = TypeVar("S", bound=Section)


def bind(section: S, path: str = "") -> S:
    """A copy of a section, and of those inside it, that knows where it stands in the tree."""
    bound = copy.copy(section)
    for name, value in section.items():
        object.__setattr__(bound, name, _bind_value(value, _join(path, name)))
    object.__setattr__(bound, "_path", path)
    return bound


def _bind_value(value: Any, path: str) -> Any:
    if isinstance(value, Section):
        return bind(value, path)
    if isinstance(value, Mapping):
        return {key: _bind_value(item, _join(path, str(key))) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_bind_value(item, _join(path, str(i))) for i, item in enumerate(value))
    return value


def reads() -> set[str]:
    """Dotted paths of the fields that were read in this process since it began."""
    return set(_READS)


class ReportsReads:
    """Mixed into actors, so that the driver can ask what was read in their processes."""

    def config_reads(self) -> set[str]:
        """See ``reads``."""
        return reads()


def forget_reads() -> None:
    """Start the record of this process afresh (a second run in one process, tests)."""
    _READS.clear()


def _sections(value: Any) -> Iterator[bool]:
    """True for each section found in a value or directly inside a container."""
    if isinstance(value, Section):
        yield True
    elif isinstance(value, Mapping):
        yield from (isinstance(item, Section) for item in value.values())
    elif isinstance(value, tuple | list):
        yield from (isinstance(item, Section) for item in value)


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
