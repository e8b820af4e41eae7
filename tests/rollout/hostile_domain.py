"""Domains whose verifiers misbehave as their artifact tells them to; for tests of failure only."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from polymath.envs.contract import Domain
from polymath.envs.sandbox.base import Sandbox, SandboxError
from polymath.envs.types import Artifact, Deadline, DomainSpec, Level, Task, text
from polymath.rewards.verdict import Verdict, invalid, ok, tampered


@dataclass(frozen=True)
class HostileVerifier:
    """Does what the artifact's answer names; ``always`` does it to the control as well."""

    always: str

    async def progress(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Any:
        return {}

    async def verify(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Verdict:
        what = self.always or artifact.answer or "nothing"
        match what:
            case "right":
                print("a verifier may print")
                return ok(1.0, {"pid": os.getpid()})
            case "half":
                return ok(0.5)
            case "hang":
                while True:
                    time.sleep(1)
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "raise":
                raise KeyError("what the artifact lacks")
            case "sys_exit":
                sys.exit(0)
            case "nan":
                return ok(float("nan"))
            case "too_much":
                return ok(1.5)
            case "no_verdict":
                return "1.0"  # type: ignore[return-value]
            case "strange_evidence":
                return ok(1.0, {"x": object()})
            case "memory":
                bytearray(64 << 30)
            case "invalid":
                return invalid("cannot tell")
            case "tampered":
                return tampered(-5.0, "it touched the check")
            case "sandbox":
                await sandbox.put({"a.txt": b"7"})
                done = await sandbox.exec("cat a.txt", timeout=5)
                return ok(float(done.output == "7"), {"status": str(done.status)})
            case "bad_path":
                await sandbox.put({"../../etc/passwd": b"x"})
            case "sandbox_error":
                raise SandboxError("the sandbox died")
            case "recursion":
                return await self.verify(artifact, sandbox, deadline)
        return ok(-1.0)


class HostileDomain:
    """Reward in [-1, 1]; doing nothing scores the floor."""

    def __init__(self, id: str) -> None:
        self.spec = DomainSpec(id, "1", (Level(0, "only"),), reward_range=(-1.0, 1.0))

    def sample(self, seed: int, level: Level) -> Task:
        return Task(self.spec.id, level.index, seed, text("do"))

    async def open(self, task: Task, sandbox: Sandbox) -> Any:
        raise NotImplementedError

    def verifier(self, task: Task) -> HostileVerifier:
        if self.spec.id == "hostile/unloadable":
            raise ImportError("a library is missing")
        return HostileVerifier(str(task.private.get("always", "")))

    def oracle(self, task: Task) -> Any:
        raise NotImplementedError

    def adversaries(self, task: Task) -> Any:
        return ()


def get(id: str) -> Domain:
    """The resolver of these tests."""
    if not id.startswith("hostile/"):
        raise KeyError(id)
    return HostileDomain(id)
