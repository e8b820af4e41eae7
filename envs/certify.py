"""The admission gate: what a domain must show before it may train anybody.

``certify`` plays and attacks a domain at every level and returns a certificate with the evidence of
each check. The checks are the functions at the end of this file; each answers with what it found
wrong, so that a refusal says why. Faults of the sandbox itself are raised, not counted against the
domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from polymath.envs.contract import Adversary, Domain, Policy
from polymath.envs.sandbox.base import Sandbox, SandboxBackend, SandboxError, SandboxSpec
from polymath.envs.scripted import Transcript, answer, run_policy, script
from polymath.envs.types import Artifact, Deadline, Json, Level, Task
from polymath.rewards.verdict import Status, Verdict

VERIFY_SECONDS = 60.0
CONSTANTS = ("", "0", "1", "2", "3", "done", "ok", "yes", "no", "true", "false", "True", "nan", "a")
HOSTILE_TEXT = (
    "",
    " ",
    "\x00",
    "\ud800",
    "nan",
    "inf",
    "-inf",
    "[]",
    "{}",
    "null",
    '{"a":',
    "=1/0",
)
MANY = 10_000_000


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """How thorough the gate is. ``plays`` seeds are played at each level."""

    plays: int = 3
    constants_seeds: int = 200
    sampled_seeds: int = 20
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One check at one level: what was found wrong (nothing, if it passed), and the evidence."""

    name: str
    level: int
    faults: tuple[str, ...]
    evidence: str

    @property
    def passed(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of the gate for one version of a domain."""

    domain: str
    version: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def __str__(self) -> str:
        rows = [f"{self.domain} {self.version}: {'certified' if self.passed else 'REFUSED'}"]
        for check in self.checks:
            mark = "ok  " if check.passed else "FAIL"
            rows.append(f"  {mark} level {check.level} {check.name}: {check.evidence}")
            rows += [f"         {fault}" for fault in check.faults[:5]]
        return "\n".join(rows)


async def certify(
    domain: Domain,
    backend: SandboxBackend,
    thoroughness: Thoroughness = Thoroughness(),
) -> Certificate:
    """Run every check at every level; a check that raises is a fault of the domain."""
    gate = _Gate(domain, backend, thoroughness)
    checks = []
    for level in domain.spec.levels:
        for name, check in CHECKS.items():
            try:
                faults, evidence = await check(gate, level)
            except SandboxError:
                raise
            except Exception as fault:
                faults, evidence = [f"{type(fault).__name__}: {str(fault)[:300]}"], "raised"
            checks.append(Check(name, level.index, tuple(faults), evidence))
    return Certificate(domain.spec.id, domain.spec.version, tuple(checks))


Findings = tuple[list[str], str]
"""Faults (empty when the check passes), and one line of evidence."""


class _Gate:
    """A domain under test, and the ways to play and to judge it."""

    def __init__(self, domain: Domain, backend: SandboxBackend, thoroughness: Thoroughness) -> None:
        self.domain = domain
        self.thoroughness = thoroughness
        self.floor, self.maximum = domain.spec.reward_range
        self._backend = backend

    def tasks(self, level: Level, count: int) -> Iterator[Task]:
        """The tasks of the first seeds."""
        return (self.domain.sample(seed, level) for seed in range(count))

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """A fresh sandbox of the domain's kind."""
        spec = self.domain.spec
        sandbox = await self._backend.create(SandboxSpec(spec.image, spec.limits))
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def play(self, task: Task, policy: Policy) -> Transcript:
        """One episode in its own sandbox, closed when it ends."""
        async with self.sandbox() as sandbox:
            return await run_policy(self.domain, task, policy, sandbox)

    async def judge(self, task: Task, artifact: Artifact, sandbox: Sandbox) -> Verdict:
        """The verdict on an artifact."""
        deadline = Deadline.after(VERIFY_SECONDS)
        return await self.domain.verifier(task).verify(artifact, sandbox, deadline)

    def above_floor(self, verdict: Verdict) -> str | None:
        """What is wrong with a verdict that should be the floor."""
        if not verdict.trains:
            return f"verdict {verdict.status} ({verdict.evidence.get('why', '')})"
        if verdict.reward is not None and verdict.reward > self.floor:
            return f"reward {verdict.reward:g}, the floor is {self.floor:g}"
        return None


async def _oracle(gate: _Gate, level: Level) -> Findings:
    faults = []
    turns = 0
    for task in gate.tasks(level, gate.thoroughness.plays):
        transcript = await gate.play(task, gate.domain.oracle(task))
        turns += len(transcript.steps)
        verdicts = []
        for _ in range(gate.thoroughness.repeats):
            async with gate.sandbox() as sandbox:
                verdicts.append(await gate.judge(task, transcript.artifact, sandbox))
        if verdicts[0].status is not Status.OK or verdicts[0].reward != gate.maximum:
            faults.append(f"seed {task.seed}: {verdicts[0].status} {verdicts[0].reward}")
        if any(verdict != verdicts[0] for verdict in verdicts):
            rewards = [verdict.reward for verdict in verdicts]
            faults.append(f"seed {task.seed}: the verdict does not repeat: {rewards}")
    return faults, f"maximum reward, {turns / gate.thoroughness.plays:.1f} turns on average"


async def _null(gate: _Gate, level: Level) -> Findings:
    return await _refused(
        gate, level, lambda task: [Adversary("doing nothing", script(answer("")))]
    )


async def _adversaries(gate: _Gate, level: Level) -> Findings:
    if not gate.domain.adversaries(gate.domain.sample(0, level)):
        return ["the domain declares no adversary"], "none"
    return await _refused(gate, level, gate.domain.adversaries)


async def _refused(
    gate: _Gate, level: Level, attacks: Callable[[Task], Sequence[Adversary]]
) -> Findings:
    """Each attack in a fresh sandbox of its own, all judged in another one."""
    faults = []
    names = set()
    async with gate.sandbox() as judging:
        for task in gate.tasks(level, gate.thoroughness.plays):
            for attack in attacks(task):
                names.add(attack.name)
                transcript = await gate.play(task, attack.policy)
                verdict = await gate.judge(task, transcript.artifact, judging)
                if wrong := gate.above_floor(verdict):
                    faults.append(f"seed {task.seed}: {attack.name!r} gets {wrong}")
    return faults, f"{len(names)} attacks on {gate.thoroughness.plays} seeds"


async def _constants(gate: _Gate, level: Level) -> Findings:
    """The files untouched, and one answer for all seeds."""
    tasks = list(gate.tasks(level, gate.thoroughness.constants_seeds))
    common = Counter(value for task in tasks for value in set(_scalars(task.private)))
    candidates = {*CONSTANTS, *(value for value, _ in common.most_common(30))}
    means = dict.fromkeys(candidates, 0.0)
    async with gate.sandbox() as sandbox:
        for task in tasks:
            for constant in candidates:
                verdict = await gate.judge(task, Artifact(constant, task.files), sandbox)
                reward = gate.floor if verdict.reward is None else verdict.reward
                means[constant] += reward / len(tasks)
    best = max(sorted(means), key=lambda constant: means[constant])
    evidence = f"best of {len(means)} constants {best[:20]!r} gets {means[best]:.3f}"
    limit = gate.domain.spec.guess_rate
    return ([f"{evidence}, declared {limit:.3f}"] if means[best] > limit else []), evidence


async def _sampling(gate: _Gate, level: Level) -> Findings:
    faults = []
    contents = []
    for seed in range(gate.thoroughness.sampled_seeds):
        first, second = gate.domain.sample(seed, level), gate.domain.sample(seed, level)
        if first.digest != second.digest:
            faults.append(f"seed {seed} gives two different tasks")
        if Task.from_json(first.to_json()) != first:
            faults.append(f"seed {seed}: the task does not survive its JSON round trip")
        contents.append(replace(first, seed=0).digest)
    distinct = len(set(contents))
    if distinct <= len(contents) // 2:
        faults.append(f"only {distinct} of {len(contents)} seeds give different tasks")
    return faults, f"{distinct} distinct tasks of {len(contents)}"


async def _hostile(gate: _Gate, level: Level) -> Findings:
    """Artifacts that no honest episode leaves; they score the floor and break nothing."""
    faults = []
    count = 0
    for task in gate.tasks(level, 1):
        gold = (await gate.play(task, gate.domain.oracle(task))).artifact
        async with gate.sandbox() as sandbox:
            for name, artifact in _hostile_artifacts(gold):
                count += 1
                verdict = await gate.judge(task, artifact, sandbox)
                if wrong := gate.above_floor(verdict):
                    faults.append(f"{name}: {wrong}")
                await gate.domain.verifier(task).progress(
                    artifact, sandbox, Deadline.after(VERIFY_SECONDS)
                )
    return faults, f"{count} hostile artifacts"


async def _mutants(gate: _Gate, level: Level) -> Findings:
    """Small changes of what the oracle left; at least one of them must cost reward."""
    faults = []
    count = 0
    for task in gate.tasks(level, gate.thoroughness.plays):
        policy = gate.domain.oracle(task)
        gold = (await gate.play(task, policy)).artifact
        async with gate.sandbox() as sandbox:
            rewards = [
                (await gate.judge(task, mutant, sandbox)).reward for mutant in _mutations(gold)
            ]
        count += len(rewards)
        if rewards and all(reward == gate.maximum for reward in rewards):
            faults.append(f"seed {task.seed}: no mutant of the gold loses reward")
    return faults, f"{count} mutants"


CHECKS: dict[str, Callable[[_Gate, Level], Awaitable[Findings]]] = {
    "sampling is deterministic and varied": _sampling,
    "the oracle scores the maximum, repeatedly": _oracle,
    "doing nothing scores the floor": _null,
    "adversaries score the floor": _adversaries,
    "constants stay below the guess rate": _constants,
    "hostile artifacts score the floor": _hostile,
    "mutants of the gold lose reward": _mutants,
}


def _scalars(value: Json) -> Iterator[str]:
    """Every number and short text in a private part, as the answer that it could be."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _scalars(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _scalars(part)
    elif isinstance(value, (str, int, float)) and len(str(value)) <= 40:
        yield str(value)


def _hostile_artifacts(gold: Artifact) -> Iterator[tuple[str, Artifact]]:
    yield "an empty artifact", Artifact()
    yield "everything missing", Artifact(None, {}, dict.fromkeys(gold.files, "not a regular file"))
    for junk in HOSTILE_TEXT:
        yield f"answer {junk!r}", Artifact(junk)
    yield "a huge answer", Artifact("9" * MANY)
    yield "a deeply nested answer", Artifact("[" * 100_000)
    if not gold.files:
        return
    contents = {
        "empty files": b"",
        "zeros": bytes(1 << 20),
        "binary": bytes(range(256)) * 64,
        "broken UTF-8": b"\xff\xfe\xfa",
        "a truncated zip": b"PK\x03\x04" + bytes(30),
        "many lines": b"\n" * 1_000_000,
        "one long line": b"1," * 500_000,
        "nested JSON": b"[" * 100_000,
    }
    for name, data in contents.items():
        yield name, Artifact(gold.answer, dict.fromkeys(gold.files, data))


def _mutations(gold: Artifact) -> Iterator[Artifact]:
    if gold.answer:
        for said in (gold.answer[:-1], gold.answer + gold.answer[-1], "x" + gold.answer):
            yield replace(gold, answer=said)
    for path, data in gold.files.items():
        middle = len(data) // 2
        for other in (data[:middle], data[middle:], data + data):
            yield replace(gold, files={**gold.files, path: other})
        yield replace(gold, files={name: gold.files[name] for name in gold.files if name != path})
