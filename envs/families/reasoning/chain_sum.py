"""Sums and differences of whole numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from polymath.envs.families.generated import LIMITS
from polymath.envs.families.reasoning.gym import GymDomain
from polymath.envs.types import DomainSpec, Json, Level


def _knobs(terms: int, digits: int) -> dict[str, Json]:
    return {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}


class ChainSum(GymDomain):
    """``reasoning/chain-sum``."""

    spec = DomainSpec(
        id="reasoning/chain-sum",
        version="1",
        levels=(
            Level(0, "one digit", _knobs(2, 1)),
            Level(1, "two digits", _knobs(2, 2)),
            Level(2, "three terms", _knobs(3, 2)),
        ),
        instructions="Answer with the number alone.",
        limits=LIMITS,
        guess_rate=0.15,
    )
    dataset = "chain_sum"
    form = re.compile(r"-?\d{1,6}", re.ASCII)

    def thought(self, entry: Mapping[str, Json]) -> str:
        """Term by term, tens before units: ``57 + 38: 57 + 30 = 87, 87 + 8 = 95.``"""
        first, *rest = str(entry["metadata"]["expression"]).split()
        total, steps = int(first), []
        for sign, term in zip(rest[::2], map(int, rest[1::2]), strict=True):
            for part in (term // 10 * 10, term % 10):
                if part or term == 0:
                    result = total + part if sign == "+" else total - part
                    steps.append(f"{total} {sign} {part} = {result}")
                    total = result
                if term == 0:
                    break
        return ", ".join(steps) + "."
