"""Every shipped domain in a real sandbox: it passes the gate, and behaves as its page says."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from polymath.envs import registry
from polymath.envs.certify import Certificate, Thoroughness, certify
from polymath.envs.contract import Decision
from polymath.envs.families.demonstrations import Premature
from polymath.envs.families.office.sheet import find, get, put
from polymath.envs.families.terminal.bash import bash
from polymath.envs.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from polymath.envs.scripted import Script, answer, run_policy, script
from polymath.envs.types import Artifact, Deadline, Task, as_text

SHIPPED = [name for name in registry.ids() if name.split("/")[0] in registry.SHIPPED]
MakeBackend = Callable[[], SandboxBackend]


def in_sandbox(make_backend: MakeBackend, body: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def run() -> None:
        backend = make_backend()
        try:
            sandbox = await backend.create(SandboxSpec())
            try:
                await body(sandbox)
            finally:
                await sandbox.close()
        finally:
            await backend.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("domain_id", SHIPPED)
def test_a_shipped_domain_passes_the_gate(domain_id: str, make_backend: MakeBackend) -> None:
    async def run() -> Certificate:
        backend = make_backend()
        try:
            return await certify(registry.get(domain_id), backend, Thoroughness(plays=1, repeats=2))
        finally:
            await backend.close()

    certificate = asyncio.run(run())
    assert certificate.passed, certificate


@pytest.mark.parametrize("domain_id", SHIPPED)
def test_levels_do_not_get_easier(domain_id: str, make_backend: MakeBackend) -> None:
    """The oracle never needs fewer turns at a higher level."""
    domain = registry.get(domain_id)
    turns: list[float] = []

    async def body(sandbox: Sandbox) -> None:
        for level in domain.spec.levels:
            task = domain.sample(0, level)
            played = await run_policy(domain, task, domain.oracle(task), sandbox)
            turns.append(len(played.steps))

    in_sandbox(make_backend, body)
    assert len(turns) >= 2
    assert turns == sorted(turns)


@pytest.mark.parametrize("domain_id", SHIPPED)
def test_giving_up_early_rarely_pays(domain_id: str, make_backend: MakeBackend) -> None:
    domain = registry.get(domain_id)
    rewards: list[float] = []

    async def body(sandbox: Sandbox) -> None:
        for seed in range(12):
            task = domain.sample(seed, domain.spec.levels[seed % len(domain.spec.levels)])
            policy = Premature(domain.oracle(task), random.Random(seed))
            played = await run_policy(domain, task, policy, sandbox)
            rewards.append(await reward(task, played.artifact, sandbox))

    in_sandbox(make_backend, body)
    # A single tool call may already leave a file as it should be: "done" is then no guess.
    assert sum(rewards) / len(rewards) <= 0.5


async def reward(task: Task, artifact: Artifact, sandbox: Sandbox) -> float:
    verifier = registry.get(task.domain).verifier(task)
    verdict = await verifier.verify(artifact, sandbox, Deadline.after(10))
    assert verdict.reward is not None, verdict
    return verdict.reward


def seen(
    make_backend: MakeBackend, domain_id: str, decisions: Sequence[Decision], level: int = 0
) -> tuple[Task, list[str], Artifact]:
    """What a policy saw after each of its decisions, on seed 0."""
    domain = registry.get(domain_id)
    task = domain.sample(0, domain.spec.level(level))
    observations: list[str] = []
    artifacts: list[Artifact] = []

    async def body(sandbox: Sandbox) -> None:
        played = await run_policy(domain, task, script(*decisions), sandbox)
        observations.extend(as_text(step.result.observation) for step in played.steps)
        artifacts.append(played.artifact)

    in_sandbox(make_backend, body)
    return task, observations, artifacts[0]


def test_bash_shows_output_failure_and_silence(make_backend: MakeBackend) -> None:
    commands = ("echo hello; echo there >&2", "true", "exit 3", "seq 2000", "printf 'a\\0b'")
    _, shown, _ = seen(make_backend, "terminal/csv-join", [bash(c) for c in commands])
    assert shown[:3] == ["hello\nthere", "(no output)", "exit code 3"]
    assert len(shown[3]) < 450
    assert "more]" in shown[3]
    assert shown[4].startswith("a")


def test_bash_says_when_time_is_up(make_backend: MakeBackend) -> None:
    domain = registry.get("terminal/csv-join")
    task = domain.sample(0, domain.spec.level(0))

    async def body(sandbox: Sandbox) -> None:
        session = await domain.open(task, sandbox)
        await session.reset()
        result = await session.act(bash("sleep 60").action, Deadline.after(0.5))
        assert "timed out" in as_text(result.observation)

    in_sandbox(make_backend, body)


def test_the_gold_is_not_in_the_sandbox(make_backend: MakeBackend) -> None:
    task, shown, _ = seen(make_backend, "terminal/csv-join", [bash("ls -A; ls -A /tmp ~")])
    assert set(task.files) <= set(shown[0].split())
    assert "out.csv" not in shown[0]
    assert task.private["rows"][0] not in shown[0]


def test_the_sheet_tool_reads_finds_writes_and_refuses(make_backend: MakeBackend) -> None:
    task, shown, artifact = seen(
        make_backend,
        "office/summary",
        [
            find("nothing like this"),
            get("A1:B2"),
            put("D4", "=1+1"),
            get("D4"),
            get("ZZ1"),
            put("A1", "x\x07"),
        ],
    )
    cells = task.private["cells"]
    first = f"{cells['A1']}, {cells['B1']}\n{cells['A2']}, {cells['B2']}"
    assert shown[:4] == ["not found", first, "ok", "=1+1"]
    assert all(text.startswith("error") for text in shown[4:])
    assert set(artifact.files) == {"book.xlsx"}


def test_milestones_rise_with_the_work_done(make_backend: MakeBackend) -> None:
    domain = registry.get("terminal/file-repair")
    task = domain.sample(0, domain.spec.level(2))
    reached: list[float] = []

    async def body(sandbox: Sandbox) -> None:
        session = await domain.open(task, sandbox)
        observation = await session.reset()
        policy = domain.oracle(task)
        verifier = domain.verifier(task)
        for _ in range(4):
            progress = await verifier.progress(
                await session.artifact(), sandbox, Deadline.after(10)
            )
            reached.append(sum(progress.values()) / len(progress))
            result = await session.act(policy.decide(observation).action, Deadline.after(10))
            observation = result.observation

    in_sandbox(make_backend, body)
    assert reached == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize(
    ("formula", "passes"),
    [
        ("=SUM({range})", True),
        ("=SUM({range})+0", True),
        ("=SUM({range})*1.0001", False),
        ("=SUM({range},1)", False),
        ("SUM({range})", False),
    ],
)
def test_a_formula_is_judged_by_what_it_computes(
    formula: str, passes: bool, make_backend: MakeBackend
) -> None:
    domain = registry.get("office/formula-fill")
    tasks = (domain.sample(seed, domain.spec.level(0)) for seed in range(100))
    task = next(task for task in tasks if task.private["targets"][0]["function"] == "SUM")
    target = task.private["targets"][0]
    over = f"{target['over'][0]}:{target['over'][-1]}"

    async def body(sandbox: Sandbox) -> None:
        policy = script(put(target["cell"], formula.format(range=over)), answer("done"))
        played = await run_policy(domain, task, policy, sandbox)
        assert await reward(task, played.artifact, sandbox) == float(passes)

    in_sandbox(make_backend, body)


@pytest.mark.parametrize("domain_id", [name for name in SHIPPED if name.startswith("reasoning")])
def test_reasoning_gives_no_part_credit(domain_id: str) -> None:
    domain = registry.get(domain_id)
    for level in domain.spec.levels:
        task = domain.sample(1, level)
        gold = task.private["entry"]["answer"]
        for given, expected in (
            (gold, 1.0),
            (f" {gold}\n", 1.0),
            (gold[:-1], 0.0),
            (gold + "x", 0.0),
            (f"{gold}.", 0.0),
            (f"**{gold}**", 0.0),
            ("nan", 0.0),
            ("", 0.0),
        ):
            found = asyncio.run(reward(task, Artifact(given), None))  # type: ignore[arg-type]
            assert found == expected, (given, gold)


def test_thoughts_end_at_the_answer() -> None:
    """The oracle's chain of thought computes what it then answers."""
    domain = registry.get("reasoning/chain-sum")
    for level in domain.spec.levels:
        for seed in range(50):
            task = domain.sample(seed, level)
            decision = domain.oracle(task).decide(task.prompt)
            assert decision.thought.endswith(f"= {task.private['entry']['answer']}.")
            for step in decision.thought.rstrip(".").split(", "):
                left, _, right = step.partition(" = ")
                assert eval(left) == int(right)


def test_a_task_is_the_same_in_another_process_and_for_ever() -> None:
    """A change of these digests changes every task: give the domain a new version."""
    digests = {
        name: registry.get(name).sample(7, registry.get(name).spec.levels[-1]).digest[:12]
        for name in SHIPPED
    }
    assert digests == DIGESTS


DIGESTS = {
    "office/formula-fill": "5cfe2b7f6c98",
    "office/summary": "3c5100cb089d",
    "reasoning/chain-sum": "32544f2e6edd",
    "reasoning/spell-backward": "76ec7e2ef614",
    "terminal/csv-join": "139768e69ac7",
    "terminal/file-repair": "33b71c9d1c38",
    "terminal/log-triage": "63fd3f9b07c3",
}


def test_a_join_that_lost_a_row_fails_at_every_level(make_backend: MakeBackend) -> None:
    domain = registry.get("terminal/csv-join")

    async def body(sandbox: Sandbox) -> None:
        for level in domain.spec.levels:
            task = domain.sample(3, level)

            def shorten(prompt: str, task: Task = task):  # type: ignore[no-untyped-def]
                first = domain.oracle(task).decide(task.prompt)
                yield first
                yield bash("sed -i 1d out.csv")
                yield answer("done")

            played = await run_policy(domain, task, Script(shorten), sandbox)
            assert await reward(task, played.artifact, sandbox) == 0.0

    in_sandbox(make_backend, body)
