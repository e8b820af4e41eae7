"""The domain contract: what a domain team writes, on one page.

    class MyDomain:
        spec = DomainSpec(id="my_team/my_domain", version="1", levels=(Level(0, "easy"),))
        def sample(self, seed, level): ...        # pure: the same seed gives the same task
        async def open(self, task, sandbox): ...  # -> Session
        def verifier(self, task): ...             # holds the gold
        def oracle(self, task): ...               # must score the maximum
        def adversaries(self, task): ...          # must score no more than doing nothing

The world (Session) and the check (Verifier) are apart: a session never sees the gold's verdict, a
verifier never runs in the agent's sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from polymath.envs.sandbox.base import Sandbox
from polymath.envs.types import (
    Action,
    Artifact,
    Deadline,
    DomainSpec,
    Json,
    Level,
    Observation,
    Task,
)
from polymath.rewards.verdict import Verdict


@dataclass(frozen=True, slots=True)
class ActResult:
    """What an action led to.

    ``state_key`` names the state for step-level credit (equal keys are equal states), ``events``
    are facts for people and metrics, never for the agent.
    """

    observation: Observation
    terminated: bool = False
    truncated: bool = False
    state_key: str | None = None
    events: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a scripted policy does next; ``thought`` becomes the thinking section in training."""

    action: Action
    thought: str = ""


class Policy(Protocol):
    """A scripted agent: oracle, adversary or imperfect demonstrator. One instance, one episode."""

    def decide(self, observation: Observation) -> Decision:
        """The next decision, given the newest observation (the prompt at first)."""
        ...


@dataclass(frozen=True, slots=True)
class Adversary:
    """A known hack. It must score no more than doing nothing."""

    name: str
    policy: Policy


class Session(Protocol):
    """One live task in a sandbox that is lent, not owned."""

    async def reset(self) -> Observation:
        """Lay the task out in the sandbox and return the prompt."""
        ...

    async def act(self, action: Action, deadline: Deadline) -> ActResult:
        """Carry out one action. The model's mistakes are observations, never exceptions."""
        ...

    async def artifact(self) -> Artifact:
        """What may leave the sandbox, read by whitelisted path."""
        ...


class Verifier(Protocol):
    """Scores an artifact. Runs in the verifier service with a fresh sandbox, never the agent's."""

    async def progress(
        self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline
    ) -> Mapping[str, float]:
        """Milestones in [0, 1] for step credit, hidden from the agent; empty if there are none."""
        ...

    async def verify(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Verdict:
        """The verdict. A fault that the artifact causes scores the floor, never INVALID."""
        ...


@runtime_checkable
class Domain(Protocol):
    """One generator with its own checker, found through the group ``polymath.domains``."""

    spec: DomainSpec

    def sample(self, seed: int, level: Level) -> Task:
        """The task of this seed; pure."""
        ...

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """A session over a lent sandbox."""
        ...

    def verifier(self, task: Task) -> Verifier:
        """The checker of this task; it holds the gold."""
        ...

    def oracle(self, task: Task) -> Policy:
        """A policy that scores the maximum."""
        ...

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Known hacks."""
        ...
