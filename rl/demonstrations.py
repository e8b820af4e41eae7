"""Supervised data: scripted policies played in real sandboxes, as rows.

A demonstration is tokenised by the same renderer as a rollout, so what is learnt is exactly what is
sampled later. Scripted policies are ours, so one sandbox is emptied and used again for many tasks;
sampled actions always get a fresh one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from polymath.envs import registry
from polymath.envs.contract import Domain, Policy
from polymath.envs.families.demonstrations import Premature
from polymath.envs.families.words import NOUNS
from polymath.envs.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from polymath.envs.types import Deadline, Effort, FinalAnswer, Task, ToolCall, text
from polymath.rl.curriculum import SUPERVISED_SEEDS, Kind
from polymath.rollout.renderer.base import AssistantMessage, Opening, Renderer, ToolResult
from polymath.rollout.types import Row

_EMPTY = "find /workspace /tmp -mindepth 1 -delete"
_ACT_SECONDS = 60.0


def demonstrators(imperfect: float) -> Callable[[Domain, Task, random.Random], Policy]:
    """Oracles, of which a share (0 to 1) stop too early and guess."""

    def choose(domain: Domain, task: Task, rng: random.Random) -> Policy:
        oracle = domain.oracle(task)
        return Premature(oracle, rng) if rng.random() < imperfect else oracle

    return choose


async def demonstrations(
    kinds: Sequence[Kind],
    renderer: Renderer,
    backend: SandboxBackend,
    choose: Callable[[Domain, Task, random.Random], Policy],
    *,
    first: int,
    count: int,
    parallel: int = 4,
) -> AsyncIterator[Row]:
    """``count`` demonstrations on the supervised seeds from number ``first`` on, kinds in turn."""
    numbers = iter(range(first, first + count))
    finished: asyncio.Queue[Row | Exception] = asyncio.Queue(maxsize=256)

    async def play_share() -> None:
        try:
            await play_in_one_sandbox()
        except Exception as error:
            await finished.put(error)

    async def play_in_one_sandbox() -> None:
        sandbox = await backend.create(SandboxSpec())
        try:
            for number in numbers:
                kind = kinds[number % len(kinds)]
                rng = random.Random(f"demonstration-{number}")
                domain = registry.get(kind.domain)
                task = domain.sample(SUPERVISED_SEEDS + number, domain.spec.level(kind.level))
                policy = choose(domain, task, rng)
                row = await demonstrate(domain, task, policy, kind.effort, sandbox, renderer)
                await sandbox.exec(_EMPTY)
                await finished.put(row)
        finally:
            await sandbox.close()

    shares = [asyncio.create_task(play_share()) for _ in range(parallel)]
    try:
        for _ in range(count):
            row = await finished.get()
            if isinstance(row, Exception):
                raise row
            yield row
        await asyncio.gather(*shares)
    finally:
        for share in shares:
            share.cancel()
        await asyncio.gather(*shares, return_exceptions=True)


async def demonstrate(
    domain: Domain,
    task: Task,
    policy: Policy,
    effort: Effort,
    sandbox: Sandbox,
    renderer: Renderer,
) -> Row:
    """One episode of a scripted policy as a row: loss on what the policy says, advantage 1.

    Low effort leaves the thinking out, except where thinking is the work: in tasks without tools.
    """
    spec = domain.spec
    session = await domain.open(task, sandbox)
    observation = await session.reset()
    tokens = renderer.opening(Opening(spec.instructions, spec.tools, effort, observation))
    mine = [False] * len(tokens)
    for _ in range(spec.limits.turns):
        decision = policy.decide(observation)
        thought = decision.thought if effort is not Effort.LOW or not spec.tools else ""
        said = renderer.assistant(_message(thought, decision.action))
        tokens += said
        mine += [True] * len(said)
        result = await session.act(decision.action, Deadline.after(_ACT_SECONDS))
        observation = result.observation
        if isinstance(decision.action, FinalAnswer) or result.terminated or result.truncated:
            break
        heard = renderer.results([ToolResult(decision.action.id, observation)])
        tokens += heard
        mine += [False] * len(heard)
    name = f"{task.domain}-{task.level}-{task.seed}"
    return _row(name, f"{task.domain}-{task.level}", tokens, mine)


def copying(renderer: Renderer, rng: random.Random, name: str) -> Row:
    """Words to repeat: names, numbers and cells, as they occur in the domains' prompts."""
    words = " ".join(_word(rng) for _ in range(rng.randint(2, 10)))
    effort = rng.choice((Effort.LOW, Effort.HIGH))
    tokens = renderer.opening(Opening("Repeat the words.", (), effort, text(words)))
    said = renderer.assistant(_message("", FinalAnswer(words)))
    return _row(name, "copying", tokens + said, [False] * len(tokens) + [True] * len(said))


def _word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(NOUNS)
    return (
        str(rng.randint(0, 9999)) if kind < 0.9 else f"{rng.choice('ABCDEFGH')}{rng.randint(1, 99)}"
    )


def _row(name: str, group: str, tokens: list[int], mine: list[bool]) -> Row:
    size = len(tokens)
    return Row(
        episode=name,
        group=group,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mine, np.bool_),
        logprobs=np.zeros(size, np.float32),
        advantages=np.ones(size, np.float32),
        versions=np.zeros(size, np.int32),
    )


def _message(thought: str, action: ToolCall | FinalAnswer) -> AssistantMessage:
    if isinstance(action, FinalAnswer):
        return AssistantMessage(thought, action.text, (), complete=True)
    return AssistantMessage(thought, "", (action,), complete=True)
