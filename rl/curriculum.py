"""The curriculum decides which (domain, level, seed, effort) comes next.

This first form mixes the configured domains evenly by weight: it deals all (domain, level, effort)
kinds like a shuffled deck, so that every kind comes up equally often within a deck. It does not adapt
yet; ``observe`` keeps the running means that an adapting one will need.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polymath.envs.types import DomainSpec, Effort
from polymath.errors import UserError
from polymath.rl.schema import MixtureConfig

HELD_OUT_SEEDS = 1_000_000
"""Seeds below this number are for evaluation, those from it on for training."""
HELD_OUT_STRIDE = 7919
"""Held-out seeds are multiples of it."""
MOST_HELD_OUT = len(range(0, HELD_OUT_SEEDS, HELD_OUT_STRIDE))
"""How many held-out seeds there are for each level."""
SUPERVISED_SEEDS = 1_000_000_000
"""Seeds from this number on are for supervised demonstrations."""
_DECK_RESOLUTION = 4
"""Weights are rounded to quarters of the smallest one, so that a deck stays short."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One task to attempt; ``index`` counts draws over the whole run."""

    index: int
    domain: str
    level: int
    seed: int
    effort: Effort

    @property
    def kind(self) -> Kind:
        """What it was drawn as."""
        return Kind(self.domain, self.level, self.effort)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` turns back into an equal draw."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Draw:
        """The inverse of ``to_json``."""
        return cls(**{**value, "effort": Effort(value["effort"])})


@dataclass(frozen=True, slots=True)
class Kind:
    """What the deck holds: a domain at a level with an effort."""

    domain: str
    level: int
    effort: Effort


class Curriculum:
    """Deals draws; its whole state is in ``state`` and goes into every checkpoint."""

    def __init__(self, config: MixtureConfig, specs: Mapping[str, DomainSpec], seed: int) -> None:
        self.kinds = kinds(config, specs)
        self._deck_kinds = _deck(config, self.kinds)
        self._seed = seed
        self._drawn = 0
        self._deck: list[int] = []
        self._means: dict[str, float] = {}

    def draw(self) -> Draw:
        """The next task."""
        if not self._deck:
            self._deck = list(range(len(self._deck_kinds)))
            random.Random(f"deck-{self._seed}-{self._drawn}").shuffle(self._deck)
        kind = self._deck_kinds[self._deck.pop()]
        seed = random.Random(f"task-{self._seed}-{self._drawn}").randrange(
            HELD_OUT_SEEDS, SUPERVISED_SEEDS
        )
        draw = Draw(self._drawn, kind.domain, kind.level, seed, kind.effort)
        self._drawn += 1
        return draw

    def observe(self, rewards: Iterable[tuple[str, int, float]]) -> None:
        """Take in (domain, level, mean reward) of groups that were scored."""
        for domain, level, reward in rewards:
            key = f"{domain}:{level}"
            self._means[key] = 0.9 * self._means.get(key, reward) + 0.1 * reward

    @property
    def state(self) -> dict[str, Any]:
        """All that ``restore`` needs."""
        return {
            "drawn": self._drawn,
            "deck": list(self._deck),
            "kinds": self._deck_names(),
            "means": dict(self._means),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state; a deck of another mixture is not dealt to its end."""
        self._drawn = state["drawn"]
        self._deck = list(state["deck"]) if state.get("kinds") == self._deck_names() else []
        self._means = dict(state["means"])

    def _deck_names(self) -> list[str]:
        return [f"{kind.domain}:{kind.level}:{kind.effort}" for kind in self._deck_kinds]


def kinds(config: MixtureConfig, specs: Mapping[str, DomainSpec]) -> list[Kind]:
    """Every (domain, level, effort) of the mixture, in a stable order.

    Raises ``UserError`` for a mixture that is empty or asks for a level that does not exist.
    """
    if not config.domains:
        raise UserError("mixture.domains is empty: name at least one domain")
    found = []
    for domain, share in sorted(config.domains.items()):
        known = {level.index for level in specs[domain].levels}
        levels = share.levels or tuple(sorted(known))
        if missing := [level for level in levels if level not in known]:
            raise UserError(
                f"mixture.domains.{domain}.levels: {domain} has no level {missing[0]}; "
                f"it has {', '.join(map(str, sorted(known)))}"
            )
        found += [
            Kind(domain, level, Effort(effort)) for level in levels for effort in config.efforts
        ]
    return found


def _deck(config: MixtureConfig, all_kinds: list[Kind]) -> list[Kind]:
    """Each kind as often as its domain's weight says, levels and efforts of a domain alike."""
    per_domain = {d: sum(kind.domain == d for kind in all_kinds) for d in config.domains}
    shares = {
        domain: share.weight / per_domain[domain]
        for domain, share in config.domains.items()
        if share.weight > 0
    }
    if not shares:
        raise UserError("mixture.domains: every weight is 0")
    smallest = min(shares.values())
    copies = {
        domain: max(1, round(share / smallest * _DECK_RESOLUTION))
        for domain, share in shares.items()
    }
    common = math.gcd(*copies.values())
    return [kind for kind in all_kinds for _ in range(copies.get(kind.domain, 0) // common)]
