"""Supervised training: a policy from scripted demonstrations, with the same learner that RL uses.

Three stages. Copying words first: without it, the policy learned every word of the oracle episodes but
the names that vary, and was still at chance there after 3.6 million tokens. Then oracle episodes, with
a share of copying. At the end imperfect ones, which stop too early and guess, so that the policy is
competent but careless and RL has something to improve.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from polymath.envs import registry
from polymath.envs.sandbox import select
from polymath.envs.sandbox.base import SandboxBackend
from polymath.model.config import resolve
from polymath.rl.cluster import cluster
from polymath.rl.curriculum import Kind, kinds
from polymath.rl.demonstrations import copying, demonstrations, demonstrators
from polymath.rl.learner.group import LearnerGroup
from polymath.rl.plan import check
from polymath.rl.runs import RunFolder
from polymath.rl.schema import SupervisedConfig
from polymath.rollout.renderer.base import Renderer
from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.renderer.tokenizer import SMALLEST, train_tokenizer
from polymath.rollout.types import Row

_TOKENIZER = "tokenizer.json"
_TOKENIZER_EPISODES = 1000
"""Episodes that the tokenizer is trained on."""
_MARKS = re.compile(r"<\|[^|]*\|>")


class SupervisedRun:
    """One run: tokenizer, demonstrations, training, and a policy folder at the end."""

    def __init__(self, config: SupervisedConfig, folder: RunFolder) -> None:
        check(config)
        self._config = config
        self._folder = folder
        self._steps = config.steps
        self._soften_steps = config.soften_steps
        self._copy_steps, self._copy_share = config.copy_steps, config.copy_share
        self._rows_per_step = config.rows_per_step
        self._log_every = config.log_every
        self._output = Path(config.output) if config.output else folder.path / "policy"
        self._seed = config.run.seed
        specs = {domain: registry.get(domain).spec for domain in config.mixture.domains}
        self._kinds: Sequence[Kind] = kinds(config.mixture, specs)

    async def run(self) -> Path:
        """Train and return the policy's folder."""
        backend = select(self._config.sandbox)
        try:
            tokenizer = await self._tokenizer(backend)
            oracle, soft = await self._demonstrations(PolymathRenderer(tokenizer), backend)
        finally:
            await backend.close()
        _say(
            f"{len(oracle)} oracle and {len(soft)} softening episodes, {_mean_tokens(oracle):.0f} tokens each"
        )
        learner = LearnerGroup(self._config.learner, self._config.algorithm, self._config.model)
        try:
            await learner.start()
            await self._train(learner, tokenizer, oracle, soft)
            await learner.export(str(self._output))
            shutil.copyfile(tokenizer, self._output / _TOKENIZER)
        finally:
            await learner.close()
        return self._output

    async def _tokenizer(self, backend: SandboxBackend) -> Path:
        """The tokenizer that the model brings, or a new one from what demonstrations say."""
        if self._config.model.path:
            return resolve(self._config.model.path) / _TOKENIZER
        path = self._folder.path / _TOKENIZER
        if not path.exists():
            bytewise = self._folder.path / "bytewise.json"
            train_tokenizer((), SMALLEST).save(str(bytewise))
            renderer = PolymathRenderer(bytewise)
            rows = await self._play(renderer, backend, 0, _TOKENIZER_EPISODES, 0.0)
            texts = (
                text for row in rows for text in _MARKS.split(renderer.decode(row.tokens.tolist()))
            )
            train_tokenizer(texts, self._config.vocab_size).save(str(path))
        return path

    async def _demonstrations(
        self, renderer: PolymathRenderer, backend: SandboxBackend
    ) -> tuple[list[Row], list[Row]]:
        config = self._config.demonstrations
        oracle = await self._play(renderer, backend, 0, config.episodes, 0.0)
        soft = await self._play(
            renderer, backend, config.episodes, config.imperfect_episodes, config.imperfect
        )
        return oracle, soft

    async def _play(
        self,
        renderer: PolymathRenderer,
        backend: SandboxBackend,
        first: int,
        count: int,
        imperfect: float,
    ) -> list[Row]:
        rows, started = [], time.monotonic()
        parallel = self._config.demonstrations.parallel
        async for row in demonstrations(
            self._kinds, renderer, backend, demonstrators(imperfect),
            first=first, count=count, parallel=parallel,
        ):  # fmt: skip
            rows.append(row)
            if len(rows) % 1000 == 0:
                _say(f"{len(rows)} of {count} demonstrations in {time.monotonic() - started:.0f} s")
        return rows

    def _mixed(
        self, rows: list[Row], step: int, renderer: Renderer, rng: random.Random
    ) -> list[Row]:
        """The stage's share of the rows gives way to copying."""
        share = 1.0 if step <= self._copy_steps else self._copy_share
        if step > self._steps:
            share = 0.0
        return [
            copying(renderer, rng, f"{step}-{i}") if rng.random() < share else row
            for i, row in enumerate(rows)
        ]

    async def _train(
        self, learner: LearnerGroup, tokenizer: Path, oracle: list[Row], soft: list[Row]
    ) -> None:
        renderer = PolymathRenderer(tokenizer)
        started, tokens = time.monotonic(), 0
        batches = _batches(oracle, self._rows_per_step, self._seed)
        rng = random.Random(self._seed)
        for step in range(1, self._steps + self._soften_steps + 1):
            if step == self._steps + 1:
                await learner.export(str(self._folder.path / "competent"))
                shutil.copy(tokenizer, self._folder.path / "competent")
                batches = _batches(soft, self._rows_per_step, self._seed + 1)
            rows = self._mixed(next(batches), step, renderer, rng)
            result = await learner.step(rows)
            tokens += sum(len(row.tokens) for row in rows)
            if step % self._log_every == 0:
                seconds = time.monotonic() - started
                record = {"step": step, "seconds": seconds, "tokens": tokens, **result.metrics}
                with (self._folder.path / "supervised.jsonl").open("a") as file:
                    file.write(json.dumps(record) + "\n")
                loss = result.metrics["loss/total"]
                _say(
                    f"step {step} loss {loss:.3f} tokens {tokens / 1e6:.2f}M {tokens / seconds:.0f} tok/s"
                )


def _batches(rows: list[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Shuffled epochs without end."""
    rng = random.Random(seed)
    order: list[int] = []
    while True:
        while len(order) < size:
            epoch = list(range(len(rows)))
            rng.shuffle(epoch)
            order += epoch
        yield [rows[index] for index in order[:size]]
        del order[:size]


def _mean_tokens(rows: Sequence[Row]) -> float:
    return sum(len(row.tokens) for row in rows) / len(rows)


def _say(line: str) -> None:
    print(line, flush=True)


def sft(config: SupervisedConfig) -> Path:
    """Run it; the folder of the finished policy."""
    with RunFolder.open(config.run) as folder, cluster(config.ray):
        return asyncio.run(SupervisedRun(config, folder).run())
