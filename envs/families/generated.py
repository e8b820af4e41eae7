"""What the shipped domains share: a task is drawn from a random source that its seed names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.types import DomainSpec, Json, Level, Limits, Task, text

LIMITS = Limits(turns=6, command_seconds=10.0, episode_seconds=120.0)
"""One set for all shipped domains, so that one pool of sandboxes serves them all."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has its name: the prompt's text, the files, and the gold."""

    prompt: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    private: Mapping[str, Json] = field(default_factory=dict)


class GeneratedDomain(ABC):
    """A ``Domain`` that writes ``draft`` instead of ``sample``."""

    spec: DomainSpec

    def sample(self, seed: int, level: Level) -> Task:
        """The task of this seed: all chance comes from a source that the seed names."""
        source = Random(f"{self.spec.id} {self.spec.version} {level.index} {seed}")
        draft = self.draft(source, level)
        return Task(self.spec.id, level.index, seed, text(draft.prompt), draft.files, draft.private)

    @abstractmethod
    def draft(self, random: Random, level: Level) -> Draft:
        """Draw a task of this level."""

    @abstractmethod
    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """A session over a lent sandbox."""

    @abstractmethod
    def verifier(self, task: Task) -> Verifier:
        """The checker of this task."""

    @abstractmethod
    def oracle(self, task: Task) -> Policy:
        """A policy that scores the maximum."""

    @abstractmethod
    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Known hacks."""
