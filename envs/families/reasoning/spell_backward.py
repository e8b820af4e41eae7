"""Words spelled backward."""

from __future__ import annotations

import re
from collections.abc import Mapping

from polymath.envs.families.generated import LIMITS
from polymath.envs.families.reasoning.gym import GymDomain
from polymath.envs.types import DomainSpec, Json, Level


class SpellBackward(GymDomain):
    """``reasoning/spell-backward``."""

    spec = DomainSpec(
        id="reasoning/spell-backward",
        version="1",
        levels=(
            Level(0, "three letters", {"min_word_len": 3, "max_word_len": 3}),
            Level(1, "four letters", {"min_word_len": 4, "max_word_len": 4}),
            Level(2, "five letters", {"min_word_len": 5, "max_word_len": 5}),
        ),
        instructions="Answer with the word alone.",
        limits=LIMITS,
        guess_rate=0.05,
    )
    dataset = "spell_backward"
    form = re.compile(r"[A-Za-z0-9]{1,20}", re.ASCII)

    def thought(self, entry: Mapping[str, Json]) -> str:
        """The letters, forward and backward."""
        word = str(entry["metadata"]["word"])
        return f"{' '.join(word)}, {' '.join(reversed(word))}."
