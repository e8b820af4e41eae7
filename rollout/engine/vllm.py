"""vLLM as an engine: requests in legs, weights with proof.

A request runs in legs. A pause or an update ends its leg and keeps the tokens; afterwards the request
goes on from prompt and tokens under the version that then holds. vLLM itself labels each sampled
token with the version in force, and prefixes are cached per version, so no state computed by old
weights ever serves new ones.

Per-request seeds are not offered: in vLLM 0.32 on the CPU a seeded request crashes the engine when its
prompt is prefilled in chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polymath.rollout.engine.base import (
    EngineError,
    EngineStats,
    Generation,
    SamplingSpec,
    WeightProof,
    WeightUpdate,
)
from polymath.rollout.engine.environment import prepare
from polymath.rollout.engine.failures import describe, last_line
from polymath.rollout.engine.preflight import check_folder
from polymath.rollout.engine.processes import end_children, resident_bytes
from polymath.rollout.schema import EngineConfig
from polymath.rollout.types import Tokens

_GIB = 1 << 30
_CANARY_PROMPT_TOKENS = 48
_CLOSE_SECONDS = 10.0


@dataclass
class _Request:
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    leg: str | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def generation(self, finish: str) -> Generation:
        return Generation(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            finish=finish,
            cached_tokens=self.cached_tokens or 0,
        )


class VllmEngine:
    """One engine in this process; vLLM computes in a child process.

    Args:
        model_folder: checkpoint to load as version 0, as ``polymath.model.config.resolve`` reads it.
        log_file: where the output of this process and its children goes, if anywhere; failures are
            explained from it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_folder: str,
        name: str,
        index: int = 0,
        log_file: str | None = None,
    ) -> None:
        self._name, self._folder, self._log_file = name, model_folder, log_file
        self._threads = config.threads
        self._canary_tokens = config.canary_tokens
        self._start_seconds, self._update_seconds = config.start_seconds, config.update_seconds
        self._max_model_len = config.max_model_len
        self._options: dict[str, Any] = {
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_running,
            "max_num_batched_tokens": config.max_batched_tokens,
            "block_size": config.block_tokens,
            "kv_cache_memory_bytes": int(config.kv_cache_gb * _GIB),
            "enable_prefix_caching": config.prefix_caching,
            "seed": config.seed + index,
        }
        self._llm: Any = None
        self._version = 0
        self._refusal: str | None = "has not started"
        self._open = asyncio.Event()
        self._open.set()
        self._paused = self._closed = False
        self._control = asyncio.Lock()
        self._requests: dict[str, _Request] = {}
        self._legs = 0
        self._running = 0
        self._busy_since = 0.0
        self._busy_seconds = 0.0
        self._counts = {"prompt": 0, "cached": 0, "sampled": 0}

    # Life

    async def start(self) -> WeightProof:
        """Load, warm up, prove. Raises ``EngineError`` and leaves no process behind."""
        model = check_folder(self._folder)
        self._stop_tokens = [model.eos_token_id]
        self._canary_prompt = _canary_prompt(model.vocab_size)
        try:
            async with asyncio.timeout(self._start_seconds):
                self._llm = await asyncio.to_thread(self._launch)
                await self._llm.update_weight_version("0")
                proof = await self._prove()
        except TimeoutError as error:
            await self.close()
            raise EngineError(
                f"engine {self._name}: not ready after {self._start_seconds:g} s, "
                f"waiting for vLLM; its last line: {last_line(self._log_file)}"
            ) from error
        except Exception as error:
            await self.close()
            raise EngineError(
                f"engine {self._name}: start failed: {describe(error, self._log_file)}"
            ) from error
        self._refusal = None
        return proof

    def _launch(self) -> Any:
        prepare(self._threads)
        from polymath.model.config import resolve
        from polymath.model.vllm import WEIGHT_BACKEND, register
        from polymath.model.vllm.lifeline import own

        own()
        register()
        self._stop_if_closed()
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            model=str(resolve(self._folder)),
            skip_tokenizer_init=True,
            # The cached cores have shapes that follow the batch, which graphs cannot.
            enforce_eager=True,
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            worker_extension_cls="polymath.model.vllm.transfer.WorkerExtension",
            weight_transfer_config={"backend": WEIGHT_BACKEND},
            **self._options,
        )
        llm = AsyncLLM.from_engine_args(arguments)
        try:
            self._stop_if_closed()
        except EngineError:
            llm.shutdown(0.0)
            raise
        return llm

    def _stop_if_closed(self) -> None:
        """The launching thread cannot be cancelled; it looks whether anybody still waits for it."""
        if self._closed:
            raise EngineError(f"engine {self._name} was closed while it started")

    async def close(self) -> None:
        """Stop and leave no process behind. Safe to call twice."""
        self._closed = True
        self._refuse("is closed")
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(llm.shutdown, _CLOSE_SECONDS)
        await asyncio.to_thread(end_children, _CLOSE_SECONDS)

    # Requests

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        """Continue ``prompt`` until a stop token or the limit. Raises ``EngineError``."""
        if len(prompt) >= self._max_model_len:
            raise EngineError(
                f"engine {self._name}: request {request_id} has {len(prompt)} tokens, "
                f"max_model_len is {self._max_model_len}"
            )
        if request_id in self._requests:
            raise EngineError(f"engine {self._name}: request {request_id} is already running")
        request = self._requests[request_id] = _Request([int(token) for token in prompt])
        try:
            while True:
                if not await self._admit(request):
                    return request.generation("abort")
                finish = await self._leg(request, sampling, self._stop_tokens)
                if finish != "abort" or request.aborted.is_set():
                    return request.generation(finish)
                if len(request.tokens) >= sampling.max_tokens:
                    return request.generation("length")
        finally:
            del self._requests[request_id]

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` returns what it has with ``finish="abort"``."""
        request = self._requests.get(request_id)
        if request is not None:
            request.aborted.set()
            if request.leg is not None and self._llm is not None:
                await self._llm.abort(request.leg)

    async def _admit(self, request: _Request) -> bool:
        """Wait while the engine is paused. False if the request was aborted meanwhile."""
        if not self._open.is_set():
            waits = [
                asyncio.create_task(self._open.wait()),
                asyncio.create_task(request.aborted.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if request.aborted.is_set():
            return False
        if self._refusal is not None:
            raise EngineError(f"engine {self._name} {self._refusal}")
        return True

    async def _leg(self, request: _Request, sampling: SamplingSpec, stop: list[int]) -> str:
        """Sample until vLLM ends the request, and add what it sampled. Returns the finish reason."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=sampling.max_tokens - len(request.tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            stop_token_ids=stop,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._legs += 1
        request.leg = f"leg-{self._legs}"
        inputs = tokens_input(request.prompt + request.tokens, cache_salt=str(self._version))
        final = None
        try:
            with self._busy():
                async for answer in self._llm.generate(inputs, parameters, request.leg):
                    final = answer
        except Exception as error:
            if self._llm is None or self._llm.errored:
                self._refuse(f"died: {describe(error, self._log_file)}")
                raise EngineError(f"engine {self._name} {self._refusal}") from error
            raise EngineError(
                f"engine {self._name}: a request failed: {describe(error, None)}"
            ) from error
        finally:
            request.leg = None
        if final is None:
            raise EngineError(f"engine {self._name}: vLLM ended a request without an answer")
        self._record(request, final)
        return final.outputs[0].finish_reason or "abort"

    def _record(self, request: _Request, final: Any) -> None:
        completion = final.outputs[0]
        tokens, logprobs = list(completion.token_ids), list(completion.logprobs.logprobs)
        versions = [
            int(span.version)
            for span in completion.weight_versions or ()
            for _ in range(span.start, span.end)
        ]
        if not len(tokens) == len(logprobs) == len(versions):
            raise EngineError(
                f"engine {self._name}: vLLM returned {len(tokens)} tokens, {len(logprobs)} "
                f"log-probabilities and versions for {len(versions)}"
            )
        request.tokens += tokens
        request.logprobs += logprobs
        request.versions += versions
        cached = final.num_cached_tokens or 0
        if request.cached_tokens is None:
            request.cached_tokens = cached
        self._counts["prompt"] += len(final.prompt_token_ids)
        self._counts["cached"] += cached
        self._counts["sampled"] += len(tokens)

    @contextlib.contextmanager
    def _busy(self) -> Any:
        if self._running == 0:
            self._busy_since = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._busy_seconds += time.monotonic() - self._busy_since

    # Weights

    async def pause(self) -> None:
        """Stop sampling; requests wait and keep what they have."""
        async with self._control:
            self._paused = True
            await self._halt()

    async def resume(self) -> None:
        """Go on sampling."""
        async with self._control:
            self._paused = False
            if self._refusal is None:
                await self._call("resume", self._llm.resume_generation())
            self._open.set()

    async def update_weights(self, update: WeightUpdate) -> WeightProof:
        """Take a version in and prove it. Raises ``EngineError``; then it serves nothing until an
        update succeeds."""
        async with self._control:
            if self._llm is None:
                raise EngineError(f"engine {self._name} {self._refusal}")
            await self._halt()
            try:
                async with asyncio.timeout(self._update_seconds):
                    await self._take_in(update)
                    proof = await self._prove()
                if proof.digest != update.digest:
                    raise EngineError(
                        f"it holds {proof.digest}, version {update.version} is {update.digest}"
                    )
            except Exception as error:
                why = (
                    f"no end after {self._update_seconds:g} s"
                    if isinstance(error, TimeoutError)
                    else describe(error, None)
                )
                self._refuse(f"refuses to serve: update to version {update.version} failed: {why}")
                raise EngineError(f"engine {self._name} {self._refusal}") from error
            self._refusal = None
            if not self._paused:
                self._open.set()
            return proof

    async def _halt(self) -> None:
        """Close the gate and end all legs. vLLM stays paused."""
        self._open.clear()
        if self._refusal is None:
            pause = self._llm.pause_generation(mode="abort", clear_cache=False)
            await self._call("pause", pause)

    async def _take_in(self, update: WeightUpdate) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        llm = self._llm
        await llm.start_weight_update()
        # A failure here ends vLLM's update by itself.
        await llm.update_weights(WeightTransferUpdateRequest(update_info={"path": update.path}))
        await llm.finish_weight_update(str(update.version))
        if not await llm.reset_prefix_cache():
            raise EngineError("prefixes of the old version could not be dropped")
        self._version = update.version
        await llm.resume_generation()

    async def _prove(self) -> WeightProof:
        """Digest of the live parameters, and a greedy continuation of the canary prompt."""
        (digest,) = await self._llm.collective_rpc("weights_digest")
        canary = _Request(list(self._canary_prompt))
        await self._leg(canary, SamplingSpec(self._canary_tokens, temperature=0.0), stop=[])
        return WeightProof(
            engine=self._name,
            version=self._version,
            digest=digest,
            canary_prompt=self._canary_prompt,
            canary_tokens=tuple(canary.tokens),
            canary_logprobs=tuple(canary.logprobs),
        )

    async def _call(self, what: str, call: Any) -> None:
        """Await a control call of vLLM, within the deadline of an update."""
        try:
            async with asyncio.timeout(self._update_seconds):
                await call
        except Exception as error:
            self._refuse(f"failed to {what}: {describe(error, self._log_file)}")
            raise EngineError(f"engine {self._name} {self._refusal}") from error

    def _refuse(self, why: str) -> None:
        """Serve nothing from now on, and let those who wait know."""
        self._refusal = why
        self._open.set()

    # Figures

    async def stats(self) -> EngineStats:
        """Counters for the metrics."""
        busy = self._busy_seconds
        if self._running:
            busy += time.monotonic() - self._busy_since
        return EngineStats(
            version=self._version,
            running=self._running,
            prompt_tokens=self._counts["prompt"],
            cached_tokens=self._counts["cached"],
            sampled_tokens=self._counts["sampled"],
            busy_seconds=busy,
            memory_bytes=await asyncio.to_thread(resident_bytes),
            labels={"engine": self._name, "pid": str(os.getpid())},
        )


def _canary_prompt(vocab_size: int) -> tuple[int, ...]:
    """Fixed tokens, the same for every engine of a vocabulary."""
    draw = random.Random(0)
    return tuple(draw.randrange(vocab_size) for _ in range(_CANARY_PROMPT_TOKENS))
