"""Rollout workers and the verifier service as Ray actors.

Both take their collaborators as handles, which can be sent to other processes: the sandbox host and
the engines wrap theirs, the verifier service and the run store are plain actor handles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import ray

from polymath.configs import ReportsReads
from polymath.envs import registry
from polymath.envs.sandbox.base import Sandbox, SandboxSpec
from polymath.envs.types import Artifact, Task
from polymath.rewards.verdict import Verdict
from polymath.rollout.agent_loop import Sampler
from polymath.rollout.journal import Journal
from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.sandbox_host import Owner
from polymath.rollout.schema import RolloutConfig, VerifierConfig
from polymath.rollout.verifier_service import VerifierService
from polymath.rollout.worker import RolloutWorker

_CALLS = 4096
"""Calls that an actor serves at a time; most of them wait for something else."""


class LeasingHost(Protocol):
    """Lends sandboxes: ``SandboxHost`` or ``RemoteSandboxHost``."""

    def lease(
        self, spec: SandboxSpec, *, owner: Owner, ttl: float | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Borrow a sandbox for as long as the context is open."""
        ...


def start_verifier_service(
    config: VerifierConfig, host: LeasingHost, *, run: str = "run", domains: str | None = None
) -> Any:
    """The verifier service of this node; ask it to ``verify``, and to ``close`` at the end.

    ``domains`` is the ``module:function`` that finds a domain by id; the registry unless given.
    """
    actor = ray.remote(_VerifierActor).options(num_cpus=0, max_concurrency=_CALLS)
    return actor.remote(config, host, run, domains or "polymath.envs.registry:get")


def start_worker(
    config: RolloutConfig,
    tokenizer: str | os.PathLike[str],
    engines: Sequence[Sampler],
    host: LeasingHost,
    verifier: Any,
    run_store: Any,
    *,
    run: str = "run",
) -> Any:
    """A rollout worker; ask it to ``run_group``, and for ``rows``.

    Args:
        tokenizer: a ``tokenizer.json`` or its folder (a checkpoint).
        engines: engine handles; the worker shares them with other workers.
        verifier: what ``start_verifier_service`` returned.
        run_store: what ``start_run_store`` returned.
        run: the run's name; it owns the sandboxes.
    """
    actor = ray.remote(_WorkerActor).options(num_cpus=0, max_concurrency=_CALLS)
    path = os.path.abspath(os.fspath(tokenizer))
    return actor.remote(config, path, list(engines), host, verifier, run_store, run)


def lender(
    host: LeasingHost, run: str
) -> Callable[[SandboxSpec, str, float], AbstractAsyncContextManager[Sandbox]]:
    """Borrowing from a host in a run's name: (spec, work, seconds to live)."""

    def lend(spec: SandboxSpec, work: str, ttl: float) -> AbstractAsyncContextManager[Sandbox]:
        return host.lease(spec, owner=Owner(run, work), ttl=ttl)

    return lend


class _VerifierActor(VerifierService, ReportsReads):
    def __init__(self, config: VerifierConfig, host: LeasingHost, run: str, domains: str) -> None:
        super().__init__(config, lender(host, run), domains)

    async def process_id(self) -> int:
        """Of this actor, once it is ready; its workers are its children."""
        return os.getpid()


class _WorkerActor(RolloutWorker, ReportsReads):
    def __init__(
        self,
        config: RolloutConfig,
        tokenizer: str,
        engines: Sequence[Sampler],
        host: LeasingHost,
        verifier: Any,
        run_store: Any,
        run: str,
    ) -> None:
        async def verify(episode: str, task: Task, artifact: Artifact) -> Verdict:
            verdict: Verdict = await verifier.verify.remote(episode, task, artifact)
            return verdict

        async def append(records: Sequence[bytes]) -> None:
            await run_store.append_packed.remote(records)

        super().__init__(
            config,
            PolymathRenderer(tokenizer),
            engines,
            lender(host, run),
            verify,
            Journal(append, config.journal_seconds),
            registry.get,
            ray.put,
        )

    async def process_id(self) -> int:
        """Of this actor, once it is ready."""
        return os.getpid()
