"""Everything a run needs running: sandboxes, verifiers, run store, engines, rollout workers, learner.

``start`` brings them up side by side, ``close`` takes them down. Both are bounded in time, and what
came up before a failure does not outlive it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from polymath import configs
from polymath.errors import PolymathError
from polymath.model.config import ModelConfig, resolve
from polymath.rl.learner.group import LearnerGroup
from polymath.rl.remote import typed
from polymath.rl.runs import RunFolder
from polymath.rl.schema import TrainConfig
from polymath.rollout.actors import start_verifier_service, start_worker
from polymath.rollout.engine.actor import RemoteEngine, start_engine
from polymath.rollout.engine.base import WeightProof
from polymath.rollout.run_store import start_run_store
from polymath.rollout.sandbox_host import RemoteSandboxHost, start_sandbox_host

_CLOSE_SECONDS = 40.0
"""For what is closed side by side; longer than what each allows itself, so that each ends its actor."""


class ServiceError(PolymathError):
    """A service did not come up in time."""


@dataclass
class Services:
    """Handles of what runs. ``learner`` is None where nothing trains."""

    sandbox_host: RemoteSandboxHost | None = None
    verifier: Any = None
    run_store: Any = None
    engines: list[RemoteEngine] = field(default_factory=list)
    workers: list[Any] = field(default_factory=list)
    learner: LearnerGroup | None = None
    proofs: list[WeightProof] = field(default_factory=list)
    _deadline: float = 0.0

    async def start(
        self, config: TrainConfig, model: ModelConfig, folder: RunFolder, *, learner: bool
    ) -> None:
        """Bring all up. Raises a typed error that names what failed or what is waited for."""
        self._deadline = config.deadline.start
        run, policy = config.run.name, str(resolve(model.path))
        self.sandbox_host = start_sandbox_host(config.sandbox, name=f"sandbox-host-{run}")
        self.verifier = start_verifier_service(config.verifier, self.sandbox_host, run=run)
        self.run_store = start_run_store(folder.path / "store", config.run_store)
        self.engines = [
            start_engine(config.engine, policy, f"engine-{i}", i, str(folder.logs))
            for i in range(config.engine.count)
        ]
        self.workers = [
            start_worker(
                config.rollout, policy, self.engines, self.sandbox_host, self.verifier,
                self.run_store, run=run,
            )
            for _ in range(config.rollout.workers)
        ]  # fmt: skip
        waits: dict[str, Awaitable[Any]] = {engine.name: engine.start() for engine in self.engines}
        waits |= {f"rollout worker {i}": w.process_id.remote() for i, w in enumerate(self.workers)}
        waits |= {
            "verifier service": self.verifier.process_id.remote(),
            "run store": self.run_store.process_id.remote(),
            "sandbox host": self.sandbox_host.stats(),
        }
        if learner:
            self.learner = LearnerGroup(
                config.learner, config.algorithm, model, temperature=config.rollout.temperature
            )
            waits["learner"] = self.learner.start()
        done = await self._all(waits)
        self.proofs = [done[engine.name] for engine in self.engines]

    async def config_reads(self) -> set[str]:
        """The configuration keys that the services read, for the check that none was set in vain."""
        asked = await self._all({name: actor.config_reads() for name, actor in self._reporters()})
        return configs.reads().union(*asked.values())

    async def close(self) -> None:
        """End everything, each within its time. Safe to call twice."""
        # First who asks, then who answers: a worker would take the others' end for failures to retry.
        for worker in self.workers:
            ray.kill(worker)
        ends: list[Awaitable[Any]] = [engine.close() for engine in self.engines]
        if self.learner is not None:
            ends.append(self.learner.close())
        await _settle(ends)
        last: list[Awaitable[Any]] = []
        if self.verifier is not None:
            last.append(self.verifier.close.remote())
        if self.run_store is not None:
            last.append(self.run_store.close.remote())
        if self.sandbox_host is not None:
            last.append(self.sandbox_host.close())
        await _settle(last)
        self.engines, self.workers, self.learner = [], [], None
        self.verifier = self.run_store = self.sandbox_host = None

    def _reporters(self) -> Iterator[tuple[str, Any]]:
        yield from ((engine.name, engine) for engine in self.engines)
        yield "sandbox host", self.sandbox_host
        yield "verifier service", _Reporter(self.verifier)
        yield "run store", _Reporter(self.run_store)
        yield from ((f"rollout worker {i}", _Reporter(w)) for i, w in enumerate(self.workers))

    async def _all(self, waits: dict[str, Awaitable[Any]]) -> dict[str, Any]:
        """Results by name; the first failure ends the wait, and so does the deadline."""
        tasks = {name: asyncio.ensure_future(wait) for name, wait in waits.items()}
        done, late = await asyncio.wait(
            tasks.values(), timeout=self._deadline, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in late:
            task.cancel()
        for name, task in tasks.items():
            if task in done and (error := task.exception()) is not None:
                raise typed(f"{name} did not start", error, ServiceError) from error
        if late:
            names = ", ".join(name for name, task in tasks.items() if task in late)
            raise ServiceError(
                f"not ready within deadline.start={self._deadline:.0f} s: {names}; see the run's logs"
            )
        return {name: task.result() for name, task in tasks.items()}


@dataclass(frozen=True)
class _Reporter:
    """A plain actor handle asked in the way of the wrapped ones."""

    actor: Any

    async def config_reads(self) -> set[str]:
        reads: set[str] = await self.actor.config_reads.remote()
        return reads


async def _settle(ends: list[Awaitable[Any]]) -> None:
    if ends:
        tasks = [asyncio.ensure_future(end) for end in ends]
        _, late = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
