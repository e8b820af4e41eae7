"""Engines as Ray actors, and the handle that the rest of the system holds.

``RemoteEngine`` is an ``Engine``: whoever uses it does not see Ray, and a dead actor is an
``EngineError`` like any other failure. Handles can be sent to other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from polymath.configs import ReportsReads
from polymath.rollout.engine.base import (
    EngineError,
    EngineStats,
    Generation,
    SamplingSpec,
    WeightProof,
    WeightUpdate,
)
from polymath.rollout.engine.vllm import VllmEngine
from polymath.rollout.schema import EngineConfig
from polymath.rollout.types import Tokens

T = TypeVar("T")

_MAX_CALLS = 4096
"""Calls that an actor runs at a time: each running or waiting request is one."""
_CLOSE_SECONDS = 30.0


def start_engine(
    config: EngineConfig,
    model_folder: str,
    name: str,
    index: int = 0,
    log_folder: str | None = None,
) -> RemoteEngine:
    """Create the actor of one engine; await its ``start`` for the first proof.

    Args:
        model_folder: checkpoint to load as version 0.
        index: place among the engines of a run; it makes their sampling differ.
        log_folder: where ``NAME.log`` collects what vLLM prints; without it, Ray's own logs do.

    Raises:
        EngineError: ``config.kind`` is unknown.
    """
    if config.kind not in _ACTORS:
        raise EngineError(f"engine.kind is {config.kind!r}, known are {', '.join(_ACTORS)}")
    log_file = None
    if log_folder is not None:
        Path(log_folder).mkdir(parents=True, exist_ok=True)
        log_file = str(Path(log_folder, f"{name}.log").resolve())
    # Compute threads are set by the engine; reserving CPUs in Ray too would only keep the other
    # actors of a small machine from starting.
    actor = _ACTORS[config.kind].options(max_concurrency=_MAX_CALLS, num_cpus=0)
    return RemoteEngine(actor.remote(config, model_folder, name, index, log_file), name)


class RemoteEngine:
    """The ``Engine`` protocol over an actor."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self.name = name

    async def start(self) -> WeightProof:
        """See ``Engine.start``; has its own deadline inside."""
        return await self._ask(self._actor.start.remote())

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        """See ``Engine.generate``."""
        return await self._ask(self._actor.generate.remote(request_id, prompt, sampling))

    async def abort(self, request_id: str) -> None:
        """See ``Engine.abort``."""
        await self._ask(self._actor.abort.remote(request_id))

    async def pause(self) -> None:
        """See ``Engine.pause``."""
        await self._ask(self._actor.pause.remote())

    async def resume(self) -> None:
        """See ``Engine.resume``."""
        await self._ask(self._actor.resume.remote())

    async def update_weights(self, update: WeightUpdate) -> WeightProof:
        """See ``Engine.update_weights``."""
        return await self._ask(self._actor.update_weights.remote(update))

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        return await self._ask(self._actor.stats.remote())

    async def config_reads(self) -> set[str]:
        """See ``ReportsReads``."""
        return await self._ask(self._actor.config_reads.remote())

    async def close(self) -> None:
        """Stop the engine, then its actor. Safe to call twice, and on a dead engine."""
        try:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._ask(self._actor.close.remote())
        finally:  # also when the caller waits no longer
            ray.kill(self._actor)

    async def _ask(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise EngineError(
                str(cause) if isinstance(cause, EngineError) else f"engine {self.name}: {cause!r}"
            ) from None
        except RayError as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise EngineError(f"engine {self.name} died: {first[0]}") from error


class _VllmActor(VllmEngine, ReportsReads):
    """An engine that has its process to itself."""

    def __init__(
        self, config: EngineConfig, model_folder: str, name: str, index: int, log_file: str | None
    ) -> None:
        if log_file is not None:
            _redirect_output(log_file)
        super().__init__(config, model_folder, name, index, log_file)


def _redirect_output(log_file: str) -> None:
    """Send all that this process and its children print to a file."""
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


_ACTORS: dict[str, Any] = {"vllm": ray.remote(_VllmActor)}
