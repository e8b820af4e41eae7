"""Imperfect scripted policies: they soften a starter that learned from oracles alone.

A policy that has only seen perfect episodes leaves reinforcement learning little to find; mixed with
these it starts lower and keeps the competence to climb.
"""

from __future__ import annotations

from random import Random

from polymath.envs.contract import Decision, Policy
from polymath.envs.types import FinalAnswer, Observation

TURNS, WEIGHTS = (0, 1, 2), (4, 1, 1)
"""How many of the oracle's turns are played before the guess. Mostly none: where one tool call does
the whole work, giving up after it is no failure."""


class Premature:
    """Follows an oracle for a few turns, then gives up with a guess: ``done`` or some number."""

    def __init__(self, oracle: Policy, random: Random) -> None:
        self._oracle = oracle
        (self._left,) = random.choices(TURNS, WEIGHTS)
        self._guess = random.choice(("done", str(random.randint(0, 99))))

    def decide(self, observation: Observation) -> Decision:
        """The oracle's decision while it lasts; in place of its answer comes the guess."""
        if self._left > 0:
            self._left -= 1
            decision = self._oracle.decide(observation)
            if not isinstance(decision.action, FinalAnswer):
                return decision
        return Decision(FinalAnswer(self._guess))
