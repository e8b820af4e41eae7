"""Finds domains: the shipped families and the plugins of the group ``polymath.domains``.

An entry point resolves to a mapping from domain id to a function that makes the domain, or to a
function that returns such a mapping:

    [project.entry-points."polymath.domains"]
    my_team = "my_team.domains:DOMAINS"      # {"my_team/my_domain": MyDomain}

A plugin that breaks is named in ``problems()`` and left out; it never takes the run down.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from polymath.envs.contract import Domain
from polymath.envs.types import DomainSpec
from polymath.errors import UserError

GROUP = "polymath.domains"

SHIPPED = ("office", "reasoning", "terminal")
"""Families that come with the package, found even where its metadata is not installed."""

Factory = Callable[[], Domain]


class UnknownDomain(UserError, KeyError):
    """No domain has this id; the message names the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry:
    """Domains by id. Each is made once, at its first use."""

    def __init__(self, points: Mapping[str, EntryPoint]) -> None:
        self._factories: dict[str, Factory] = {}
        self._made: dict[str, Domain] = {}
        self._problems: dict[str, str] = {}
        for name, point in sorted(points.items()):
            try:
                self._add(_mapping(point.load()))
            except Exception as fault:
                self._problems[f"{name} ({point.value})"] = f"{type(fault).__name__}: {fault}"

    def ids(self) -> list[str]:
        """All ids, sorted."""
        return sorted(self._factories)

    def get(self, domain_id: str) -> Domain:
        """The domain with this id, or ``UnknownDomain``; a domain that cannot be made raises."""
        if domain_id not in self._factories:
            raise UnknownDomain(self._unknown(domain_id))
        if domain_id not in self._made:
            domain = self._factories[domain_id]()
            if domain.spec.id != domain_id:
                raise ValueError(
                    f"domain {domain_id} calls itself {domain.spec.id}; make them equal"
                )
            self._made[domain_id] = domain
        return self._made[domain_id]

    def specs(self) -> list[DomainSpec]:
        """The specs of all domains that can be made; those that cannot become problems."""
        found = []
        for domain_id in self.ids():
            try:
                found.append(self.get(domain_id).spec)
            except Exception as fault:
                self._problems[domain_id] = f"{type(fault).__name__}: {fault}"
                del self._factories[domain_id]
        return found

    def problems(self) -> dict[str, str]:
        """What was left out, and why."""
        return dict(self._problems)

    def _add(self, factories: Mapping[str, Factory]) -> None:
        for domain_id, factory in factories.items():
            if domain_id.count("/") != 1 or not all(domain_id.split("/")):
                raise ValueError(f"a domain id is family/name, not {domain_id!r}")
            if domain_id in self._factories:
                raise ValueError(f"domain {domain_id} is already taken by another plugin")
            if not callable(factory):
                raise TypeError(f"domain {domain_id} maps to {factory!r}, not to a function")
        self._factories |= factories

    def _unknown(self, domain_id: str) -> str:
        near = difflib.get_close_matches(domain_id, self._factories, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self.ids())}"
        return f"no domain {domain_id}{hint}"


def _mapping(loaded: object) -> Mapping[str, Factory]:
    found = loaded() if callable(loaded) else loaded
    if not isinstance(found, Mapping):
        raise TypeError(f"expected a mapping of domain ids to functions, not {found!r}")
    return found


def _points() -> dict[str, EntryPoint]:
    shipped = {
        name: EntryPoint(name, f"polymath.envs.families.{name}:DOMAINS", GROUP) for name in SHIPPED
    }
    known = {point.value for point in shipped.values()}
    plugins = [point for point in entry_points(group=GROUP) if point.value not in known]
    return shipped | {f"plugin {point.name}": point for point in plugins}


@cache
def registry() -> Registry:
    """The registry of this process."""
    return Registry(_points())


def get(domain_id: str) -> Domain:
    """The domain with this id, or ``UnknownDomain`` that names the nearest."""
    return registry().get(domain_id)


def ids() -> list[str]:
    """The ids of all domains, sorted."""
    return registry().ids()


def specs() -> list[DomainSpec]:
    """The specs of all domains; imports no heavy library."""
    return registry().specs()
