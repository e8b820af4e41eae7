"""One adapter for the data sets of reasoning-gym.

A domain names a data set, its curriculum knobs per level and the form that an answer may have; the
library draws the problem and scores the answer. Its scores are not taken at face value, for some of
its checkers give credit to any text, to ``nan``, or to parts (measured on 0.1.25): only full credit
counts, only for an answer of the declared form and of bounded length, and a score that the library
cannot compute for this answer is the floor.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import answer, script
from polymath.envs.session import AnswerSession
from polymath.envs.types import Artifact, DomainSpec, Json, Level, Task, text
from polymath.rewards.verifier import PlainVerifier

FULL_CREDIT = 1.0


class MissingExtra(ImportError):
    """An optional library is absent; the message names the extra to install."""


class GymDomain(ABC):
    """A domain over one data set; a level's knobs are fields of the data set's configuration."""

    spec: DomainSpec
    dataset: ClassVar[str]
    form: ClassVar[re.Pattern[str]]
    """What an answer looks like, white space around it aside; anything else scores the floor."""

    def sample(self, seed: int, level: Level) -> Task:
        """The problem of this seed: an item of a practically endless data set."""
        name = f"{self.spec.id} {self.spec.version} {level.index} {seed}"
        index = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        entry = _plain(_dataset(self.dataset, json.dumps(level.knobs, sort_keys=True))[index])
        prompt = text(entry["question"])
        return Task(self.spec.id, level.index, seed, prompt, private={"entry": entry})

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """No tools; the answer is all."""
        return AnswerSession(task, sandbox)

    def verifier(self, task: Task) -> Verifier:
        """Full credit from the data set's own check, for an answer of the right form."""
        knobs = json.dumps(self.spec.level(task.level).knobs, sort_keys=True)
        dataset = _dataset(self.dataset, knobs)
        entry, form = task.private["entry"], self.form

        def judge(artifact: Artifact) -> float:
            given = (artifact.answer or "").strip()
            if not form.fullmatch(given):
                return 0.0
            return float(dataset.score_answer(given, entry) == FULL_CREDIT)

        return PlainVerifier(judge)

    def oracle(self, task: Task) -> Policy:
        """The gold, after the thought that leads to it."""
        entry = task.private["entry"]
        return script(answer(entry["answer"], self.thought(entry)))

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Answers around the right one."""
        gold = task.private["entry"]["answer"]
        tries = {
            "hedges": f"{gold} or {gold}{gold}",
            "wraps the answer": f"The answer is {gold}.",
            "repeats it": f"{gold} {gold}",
            "part of it": gold[:-1],
            "pads it": gold + " " * 100 + "x",
        }
        return [
            *common(task),
            *(Adversary(name, script(answer(value))) for name, value in tries.items()),
        ]

    @abstractmethod
    def thought(self, entry: Mapping[str, Json]) -> str:
        """A short chain of thought that ends at the answer."""


@lru_cache(maxsize=64)
def _dataset(name: str, knobs: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as fault:
        raise MissingExtra(
            f"reasoning/{name} needs reasoning-gym: pip install 'polymath-rl[reasoning]'"
        ) from fault
    return reasoning_gym.create_dataset(name, seed=0, size=1 << 48, **json.loads(knobs))


def _plain(entry: Mapping[str, Any]) -> dict[str, Json]:
    """The entry as JSON has it (tuples become lists), so that a task survives its round trip."""
    return dict(json.loads(json.dumps(entry)))
