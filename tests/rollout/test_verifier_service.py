"""What an artifact causes scores the floor; what happens to the control as well is INVALID."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from polymath.envs.sandbox.base import ExecResult, ExecStatus, Sandbox, SandboxSpec
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Artifact, Task, text
from polymath.rewards.verdict import Status, Verdict
from polymath.rollout.actors import lender
from polymath.rollout.sandbox_host import SandboxHost
from polymath.rollout.schema import VerifierConfig
from polymath.rollout.verifier_service import VerifierService

FLOOR = -1.0
CONFIG = VerifierConfig(workers=1, seconds=1.0, load_seconds=60.0, memory_gb=4.0)
RESOLVE = "hostile_domain:get"


@pytest.fixture(autouse=True)
def hostile_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, *sys.path]))


class Memory:
    """A sandbox that only holds files: enough to see which calls travel."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        name = str(command).removeprefix("cat ")
        return ExecResult(ExecStatus.EXITED, 0, self.files[name].decode(), 1, 0.0)

    async def put(self, files: Mapping[str, bytes]) -> None:
        self.files.update(files)


def task(always: str = "", domain: str = "hostile/any") -> Task:
    return Task(domain, 0, 0, text("do"), private={"always": always})


def run(
    body: Callable[[VerifierService], Awaitable[Any]],
    config: VerifierConfig = CONFIG,
    lent: list[str] | None = None,
) -> Any:
    @asynccontextmanager
    async def lend(spec: SandboxSpec, owner: str, ttl: float) -> AsyncIterator[Sandbox]:
        if lent is not None:
            lent.append(f"lent to {owner}")
        yield Memory()  # type: ignore[misc]
        if lent is not None:
            lent.append("back")

    async def main() -> Any:
        service = VerifierService(config, lend, RESOLVE)
        try:
            async with asyncio.timeout(100):
                return await body(service)
        finally:
            await service.close()
            assert not [
                child
                for child in psutil.Process().children(recursive=True)
                if "verifier_worker" in " ".join(child.cmdline())
            ]

    return asyncio.run(main())


def verdict_of(answer: str, always: str = "", domain: str = "hostile/any") -> Verdict:
    async def body(service: VerifierService) -> Verdict:
        return await service.verify("e1", task(always, domain), Artifact(answer))

    found: Verdict = run(body)
    return found


@pytest.mark.parametrize("answer,reward", [("right", 1.0), ("half", 0.5), ("nothing", FLOOR)])
def test_a_sound_verdict_comes_through(answer: str, reward: float) -> None:
    verdict = verdict_of(answer)
    assert (verdict.status, verdict.reward) == (Status.OK, reward)
    assert "fault" not in verdict.evidence


def test_tampering_scores_the_domains_floor() -> None:
    verdict = verdict_of("tampered")
    assert (verdict.status, verdict.reward) == (Status.TAMPERED, FLOOR)


FAULTS = {
    "exit": "crash",
    "segfault": "crash",
    "raise": "crash",
    "sys_exit": "crash",
    "nan": "crash",
    "memory": "crash",
    "recursion": "crash",
    "no_verdict": "crash",
    "strange_evidence": "crash",
    "too_much": "garbage",
    "invalid": "refused",
    "sandbox_error": "sandbox",
}


def test_a_fault_of_the_artifact_scores_the_floor_and_the_next_check_works() -> None:
    async def body(service: VerifierService) -> None:
        for answer, kind in FAULTS.items():
            verdict = await service.verify("e1", task(), Artifact(answer))
            assert (verdict.status, verdict.reward) == (Status.OK, FLOOR), answer
            assert verdict.evidence["fault"] == kind, (answer, verdict.evidence)
            after = await service.verify("e2", task(), Artifact("right"))
            assert after.reward == 1.0, answer

    run(body)


def test_a_hang_is_killed_at_its_deadline_and_the_worker_replaced() -> None:
    async def body(service: VerifierService) -> None:
        before = await service.verify("e0", task(), Artifact("right"))
        verdict = await service.verify("e1", task(), Artifact("hang"))
        assert (verdict.status, verdict.reward) == (Status.OK, FLOOR)
        assert verdict.evidence["fault"] == "hang"
        after = await service.verify("e2", task(), Artifact("right"))
        assert after.reward == 1.0 and after.evidence["pid"] != before.evidence["pid"]
        assert not psutil.pid_exists(before.evidence["pid"])

    run(body)


@pytest.mark.parametrize(
    "always,status",
    [
        ("exit", Status.INVALID),
        ("raise", Status.INVALID),
        ("nan", Status.INVALID),
        ("too_much", Status.INVALID),
        ("invalid", Status.INVALID),
        ("sandbox_error", Status.INVALID),
        ("hang", Status.TIMEOUT),
    ],
)
def test_a_fault_of_the_control_as_well_is_ours(always: str, status: Status) -> None:
    verdict = verdict_of("right", always)
    assert (verdict.status, verdict.reward) == (status, None)
    assert "control" in verdict.evidence["why"]


def test_a_domain_that_cannot_be_loaded_is_ours() -> None:
    assert verdict_of("right", domain="hostile/unloadable").status is Status.INVALID
    assert verdict_of("right", domain="unknown/domain").status is Status.INVALID


def test_a_sandbox_is_lent_only_to_a_verifier_that_asks() -> None:
    lent: list[str] = []

    async def body(service: VerifierService) -> None:
        await service.verify("e1", task(), Artifact("right"))
        assert lent == []
        verdict = await service.verify("e2", task(), Artifact("sandbox"))
        assert verdict.reward == 1.0 and verdict.evidence == {"status": "exited"}
        assert lent == ["lent to verifier/e2", "back"]

    run(body, lent=lent)


@pytest.mark.slow
def test_a_verifier_works_in_a_real_sandbox() -> None:
    """The calls travel through the service to a leased sandbox, and the lease ends with the check."""

    async def main() -> None:
        host = SandboxHost(SandboxConfig(warm=0))
        service = VerifierService(CONFIG.replace(seconds=20.0), lender(host, "test"), RESOLVE)
        try:
            async with asyncio.timeout(100):
                verdict = await service.verify("e1", task(), Artifact("sandbox"))
                assert verdict.reward == 1.0 and verdict.evidence == {"status": "exited"}
                verdict = await service.verify("e2", task(), Artifact("bad_path"))
                assert verdict.reward == FLOOR and verdict.evidence["fault"] == "sandbox"
                assert (await host.stats()).leased == 0
        finally:
            await service.close()
            await host.close()

    asyncio.run(main())


def test_waiting_in_the_queue_costs_no_time_of_the_check() -> None:
    """Twelve checks wait for the one worker behind one that is killed past their deadline."""

    async def body(service: VerifierService) -> None:
        first = asyncio.ensure_future(service.verify("e0", task(), Artifact("hang")))
        rest = [service.verify(f"e{n}", task(), Artifact("right")) for n in range(1, 13)]
        assert [verdict.reward for verdict in await asyncio.gather(*rest)] == [1.0] * 12
        assert (await first).reward == FLOOR

    run(body)


def test_workers_die_with_their_service() -> None:
    """The service is killed outright, with a verifier that will never end."""
    script = """
import asyncio, sys
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.envs.types import Artifact, Task, text
from polymath.rollout.actors import lender
from polymath.rollout.sandbox_host import SandboxHost
from polymath.rollout.schema import VerifierConfig
from polymath.rollout.verifier_service import VerifierService
async def main():
    service = VerifierService(VerifierConfig(workers=1, seconds=600), None, "hostile_domain:get")
    task = Task("hostile/any", 0, 0, text("do"))
    verdict = await service.verify("e0", task, Artifact("right"))
    print(verdict.evidence["pid"], flush=True)
    await service.verify("e1", task, Artifact("hang"))
asyncio.run(main())
"""
    service = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    worker = psutil.Process(int(service.stdout.readline()))
    service.kill()
    service.wait(timeout=30)
    assert worker.wait(timeout=30) in (None, -9)
