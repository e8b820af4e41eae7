import asyncio
from typing import Any

import pytest
from tests.rl.scripted_run import SAMPLING, ScriptedWorker
from tests.rl.test_curriculum import BOTH, SPECS

from polymath.errors import UserError
from polymath.rl.curriculum import HELD_OUT_SEEDS, MOST_HELD_OUT, kinds
from polymath.rl.evaluation import EvaluationError, EvaluationResult, Evaluator
from polymath.rollout.types import Outcome, OutcomeKind


def evaluator(*workers: ScriptedWorker, deadline: float = 5.0, **options: Any) -> Evaluator:
    given: dict[str, Any] = {
        "seeds_per_level": 2, "sampling": SAMPLING, "greedy": False, "truncated_rewards": None,
    }  # fmt: skip
    return Evaluator(workers, kinds(BOTH, SPECS), deadline=deadline, **given | options)


def evaluate(evaluator: Evaluator) -> EvaluationResult:
    return asyncio.run(evaluator.run(0, "before"))


def test_every_held_out_seed_lies_below_those_of_training_and_is_used_once_a_level() -> None:
    worker = ScriptedWorker(rewards=(1.0,))
    evaluate(evaluator(worker, seeds_per_level=MOST_HELD_OUT))
    tasks = [(asked.domain, asked.level, asked.seed) for asked in worker.asked]
    assert len(set(tasks)) == len(tasks) == MOST_HELD_OUT * 5
    assert max(asked.seed for asked in worker.asked) < HELD_OUT_SEEDS


def test_what_hangs_ends_at_the_deadline_and_is_given_up() -> None:
    worker = ScriptedWorker(hold=asyncio.Event())
    with pytest.raises(EvaluationError, match="10 of 10 held-out episodes.*deadline.batch"):
        evaluate(evaluator(worker, deadline=0.05))
    assert worker.given_up == 10


def test_the_first_failure_ends_the_wait_for_the_others() -> None:
    hangs, fails = ScriptedWorker(hold=asyncio.Event()), ScriptedWorker(raises=UserError("full"))
    with pytest.raises(UserError, match="full"):
        evaluate(evaluator(hangs, fails))
    assert hangs.given_up == 5


def test_an_evaluation_that_is_given_up_leaves_nothing_playing() -> None:
    worker = ScriptedWorker(hold=asyncio.Event())

    async def give_up() -> None:
        task = asyncio.create_task(evaluator(worker).run(0, "before"))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        assert worker.given_up == 10

    asyncio.run(give_up())


@pytest.mark.parametrize("floor", [0.0, -1.0])
def test_a_truncated_episode_counts_its_own_domains_floor(floor: float) -> None:
    worker = ScriptedWorker(outcome=Outcome(OutcomeKind.TRUNCATED, why="turns"))
    result = evaluate(evaluator(worker, truncated_rewards={"a/one": floor, "b/two": -5.0}))
    assert {record.mean for record in result.records} == {floor}
