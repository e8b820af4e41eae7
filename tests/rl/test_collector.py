import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from ray.exceptions import RayTaskError
from tests.rl.scripted_run import SAMPLING, ScriptedWorker
from tests.rl.test_curriculum import SPECS

from polymath.errors import UserError
from polymath.rl.collector import Batch, Collector, CollectorError
from polymath.rl.curriculum import Curriculum
from polymath.rl.schema import DomainShare, MixtureConfig

MIXTURE = MixtureConfig(domains={"a/one": DomainShare()})


def collector(workers: list[ScriptedWorker], staleness: int, deadline: float = 5.0) -> Collector:
    return Collector(
        workers,
        Curriculum(MIXTURE, SPECS, seed=0),
        groups_per_step=3,
        group_size=2,
        staleness=staleness,
        sampling=SAMPLING,
        deadline=deadline,
    )


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def take(collected: Collector, count: int, after: Any = lambda batch: None) -> list[Batch]:
    found = []
    async for batch in collected.batches():
        found.append(batch)
        # What is under way gets its turn, as it does while a learner works.
        for _ in range(20):
            await asyncio.sleep(0)
        after(batch)
        if len(found) == count:
            break
    await collected.close()
    return found


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_weights_are_never_older_than_the_bound_and_reach_it(staleness: int) -> None:
    published = 0

    def publish(batch: Batch) -> None:
        nonlocal published
        published += 1

    worker = ScriptedWorker(version=lambda: published)
    batches = run(take(collector([worker], staleness), 8, publish))
    ages = [
        index - episode.min_version
        for index, batch in enumerate(batches)
        for group in batch.groups
        for episode in group.episodes
    ]
    assert max(ages) == staleness
    assert min(ages) >= 0


def test_groups_come_once_each_in_the_order_of_their_draws() -> None:
    batches = run(take(collector([ScriptedWorker(), ScriptedWorker()], 1), 4))
    ids = [group.id for batch in batches for group in batch.groups]
    assert ids == [f"g{i}" for i in range(12)]


def test_a_batch_that_hangs_ends_at_its_deadline_with_a_name() -> None:
    async def hang() -> None:
        await take(collector([ScriptedWorker(hold=asyncio.Event())], 0, deadline=0.05), 1)

    with pytest.raises(CollectorError, match="rollout workers did not finish.*deadline.batch"):
        run(hang())


def test_a_group_outlives_the_death_of_a_worker() -> None:
    batches = run(take(collector([ScriptedWorker(dies=1), ScriptedWorker()], 0), 1))
    assert len(batches[0].groups) == 3


def test_a_group_that_ends_every_worker_stops_the_run() -> None:
    with pytest.raises(CollectorError, match="ended its rollout worker 3 times"):
        run(take(collector([ScriptedWorker(dies=99)], 0), 1))


def test_what_was_not_handed_over_is_played_again_after_a_restart() -> None:
    async def interrupt() -> tuple[list[Batch], Any, Any]:
        original = collector([ScriptedWorker()], 2)
        first = await take(original, 1)
        return first, original.state, original._curriculum.state

    first, state, curriculum = run(interrupt())
    restored = collector([ScriptedWorker()], 2)
    restored.restore(state)
    restored._curriculum.restore(curriculum)
    later = run(take(restored, 3))
    ids = [group.id for batch in [*first, *later] for group in batch.groups]
    assert ids == [f"g{i}" for i in range(12)]


def test_draws_that_a_changed_mixture_does_not_have_are_not_played_again() -> None:
    both = MixtureConfig(domains={"a/one": DomainShare(), "b/two": DomainShare()})
    original = Curriculum(both, SPECS, seed=0)
    draws = [[original.draw().to_json()] for _ in range(6)]
    changed = collector([ScriptedWorker()], 1)
    changed.restore(draws)
    kept = [batch for batch in draws if batch[0]["domain"] == "a/one"]
    assert 0 < len(kept) < len(draws)
    assert changed.state == kept


@pytest.mark.parametrize("wraps", [1, 2])
def test_what_a_worker_raises_is_one_typed_line(wraps: int) -> None:
    error: Exception = UserError("the disk is full")
    for _ in range(wraps):
        error = RayTaskError("run", "Traceback\n  File x\n", error, "", 1, "").as_instanceof_cause()
    with pytest.raises(UserError) as caught:
        run(take(collector([ScriptedWorker(raises=error)], 0), 1))
    assert str(caught.value) == "the disk is full"


def test_an_error_without_a_type_names_its_group() -> None:
    error = RayTaskError("run", "Traceback\n", ValueError("odd\nlines"), "", 1, "")
    with pytest.raises(CollectorError, match=r"^group g0 \(a/one\) failed: ValueError: odd$"):
        run(take(collector([ScriptedWorker(raises=error)], 0), 1))
