"""The gate refuses faulty domains, each for its own fault, and passes a sound one."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from random import Random

import pytest

from polymath.envs.certify import CHECKS, Certificate, Thoroughness, certify
from polymath.envs.contract import Adversary, Domain, Policy, Session, Verifier
from polymath.envs.sandbox.base import Sandbox, SandboxSpec
from polymath.envs.scripted import answer, script
from polymath.envs.session import AnswerSession
from polymath.envs.types import Artifact, Deadline, DomainSpec, Level, Task, text
from polymath.rewards.compare import same_number
from polymath.rewards.verdict import Verdict, ok
from polymath.rewards.verifier import Judge, PlainVerifier

QUICK = Thoroughness(plays=2, constants_seeds=60, sampled_seeds=10, repeats=2)


class NoSandbox:
    """The domains of this file only answer questions; whatever touches the sandbox fails."""

    name = "none"

    def problem(self) -> str | None:
        return None

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return self  # type: ignore[return-value]

    async def close(self) -> None:
        pass


class Doubling:
    """A sound domain: twice a number."""

    spec = DomainSpec("test/doubling", "1", (Level(0, "small"),), guess_rate=0.1)

    def sample(self, seed: int, level: Level) -> Task:
        number = Random(seed).randint(1, 1000)
        return Task(self.spec.id, 0, seed, text(f"Twice {number}?"), private={"gold": 2 * number})

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        return AnswerSession(task, sandbox)

    def judge(self, task: Task) -> Judge:
        return lambda artifact: float(same_number(artifact.answer, task.private["gold"]))

    def verifier(self, task: Task) -> Verifier:
        return PlainVerifier(self.judge(task))

    def oracle(self, task: Task) -> Policy:
        return script(answer(task.private["gold"]))

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        return [Adversary("hedges", script(answer(f"{task.private['gold']} or 7")))]


def gate(domain: Domain) -> Certificate:
    return asyncio.run(certify(domain, NoSandbox(), QUICK))


def test_a_sound_domain_is_certified() -> None:
    certificate = gate(Doubling())
    assert certificate.passed, certificate
    assert [check.name for check in certificate.checks] == list(CHECKS)


class AnyTextIsRight(Doubling):
    def judge(self, task: Task) -> Judge:
        return lambda artifact: float(bool(artifact.answer))


class NothingIsRight(Doubling):
    def judge(self, task: Task) -> Judge:
        return lambda artifact: 1.0 if not artifact.answer else 0.0


class SubstringIsRight(Doubling):
    def judge(self, task: Task) -> Judge:
        return lambda artifact: float(str(task.private["gold"]) in (artifact.answer or ""))


class NanIsRight(Doubling):
    def judge(self, task: Task) -> Judge:
        def wrong(artifact: Artifact) -> bool:
            return abs(float(artifact.answer or "-1") - task.private["gold"]) > 1e-6

        return lambda artifact: float(not wrong(artifact))


class OracleIsWrong(Doubling):
    def oracle(self, task: Task) -> Policy:
        return script(answer(task.private["gold"] + 1))


class OracleRaises(Doubling):
    def oracle(self, task: Task) -> Policy:
        raise KeyError("gold")


class OracleNeverAnswers(Doubling):
    def oracle(self, task: Task) -> Policy:
        return script(answer(""))


class DrawsFromTheClock(Doubling):
    ticks = itertools.count()

    def sample(self, seed: int, level: Level) -> Task:
        return super().sample(next(self.ticks), level)


class IgnoresTheSeed(Doubling):
    def sample(self, seed: int, level: Level) -> Task:
        task = super().sample(1, level)
        return Task(task.domain, 0, seed, task.prompt, private=task.private)


class PrivateIsNoJson(Doubling):
    def sample(self, seed: int, level: Level) -> Task:
        task = super().sample(seed, level)
        return Task(task.domain, 0, seed, task.prompt, private={"gold": {task.private["gold"]}})


class Guessable(Doubling):
    def sample(self, seed: int, level: Level) -> Task:
        number = Random(seed).randint(1, 4)
        prompt = text(f"{seed}: twice {number}?")
        return Task(self.spec.id, 0, seed, prompt, private={"gold": 2 * number})


class Flaky(Doubling):
    ticks = itertools.count()

    def judge(self, task: Task) -> Judge:
        right = super().judge(task)
        return lambda artifact: right(artifact) and float(next(self.ticks) % 2)


class CrashesOnJunk(Doubling):
    class Checker:
        def __init__(self, gold: int) -> None:
            self.gold = gold

        async def progress(
            self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline
        ) -> dict[str, float]:
            return {}

        async def verify(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Verdict:
            return ok(float(int(artifact.answer or "0") == self.gold))

    def verifier(self, task: Task) -> Verifier:
        return self.Checker(task.private["gold"])


class CheckIsBroken(Doubling):
    def judge(self, task: Task) -> Judge:
        def broken(artifact: Artifact) -> float:
            raise OSError("the gold file is gone")

        return broken


class LengthIsEnough(Doubling):
    """The digits do not matter; every mutant of the gold passes as well."""

    def sample(self, seed: int, level: Level) -> Task:
        return Task(self.spec.id, 0, seed, text(f"Say {seed} words."), private={"gold": f"{seed}!"})

    def judge(self, task: Task) -> Judge:
        return lambda artifact: float(bool(re.search(r"\d|!|x", artifact.answer or "")))


class PayAboveTheRange(Doubling):
    def verifier(self, task: Task) -> Verifier:
        return PlainVerifier(lambda artifact: 2 * self.judge(task)(artifact), None, (0.0, 2.0))


class NoAdversaries(Doubling):
    def adversaries(self, task: Task) -> Sequence[Adversary]:
        return []


class PrefixIsEnough(Doubling):
    def judge(self, task: Task) -> Judge:
        return lambda artifact: float((artifact.answer or "").startswith(str(task.private["gold"])))


class PaysForTrying(Doubling):
    def judge(self, task: Task) -> Judge:
        right = super().judge(task)
        return lambda artifact: right(artifact) or (0.05 if artifact.answer else 0.0)


class Raises(Doubling):
    def sample(self, seed: int, level: Level) -> Task:
        raise FileNotFoundError("corpus.json")


@pytest.mark.parametrize(
    ("domain", "check"),
    [
        (AnyTextIsRight, "hostile"),
        (NothingIsRight, "nothing"),
        (SubstringIsRight, "adversaries"),
        (NanIsRight, "hostile"),
        (OracleIsWrong, "oracle"),
        (OracleRaises, "oracle"),
        (OracleNeverAnswers, "oracle"),
        (DrawsFromTheClock, "sampling"),
        (IgnoresTheSeed, "sampling"),
        (PrivateIsNoJson, "sampling"),
        (Guessable, "constants"),
        (Flaky, "oracle"),
        (CrashesOnJunk, "hostile"),
        (CheckIsBroken, "nothing"),
        (LengthIsEnough, "mutants"),
        (PayAboveTheRange, "oracle"),
        (NoAdversaries, "adversaries"),
        (PrefixIsEnough, "adversaries"),
        (PaysForTrying, "adversaries"),
        (Raises, "sampling"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_faulty_domain_is_refused_for_its_fault(domain: type[Doubling], check: str) -> None:
    certificate = gate(domain())
    assert not certificate.passed
    assert any(check in failure.name for failure in certificate.failures), certificate
    assert "REFUSED" in str(certificate)


def test_a_fault_of_the_sandbox_is_not_the_domains() -> None:
    from polymath.envs.sandbox.base import SandboxError

    class Broken(NoSandbox):
        async def create(self, spec: SandboxSpec) -> Sandbox:
            raise SandboxError("bubblewrap died")

    with pytest.raises(SandboxError, match="bubblewrap died"):
        asyncio.run(certify(Doubling(), Broken(), QUICK))
