import pytest
from tests.rl.scripted_run import batch, group, request, scored, summary
from tests.rl.test_curriculum import SPECS

from polymath.rl.advantages.grpo import Grpo
from polymath.rl.credit import Credit, Credited
from polymath.rollout.groups import GroupResult
from polymath.rollout.types import Outcome, OutcomeKind

TRUNCATED = Outcome(OutcomeKind.TRUNCATED, why="turns")
INVALID = Outcome(OutcomeKind.INVALID, why="verdict_invalid: broken")
FAILED = Outcome(OutcomeKind.INFRASTRUCTURE_FAILED, why="sandbox: gone")


def credit(*groups: GroupResult, truncated: str = "floor", step: int = 0) -> Credited:
    return Credit(Grpo(), SPECS, truncated=truncated, staleness=1)(batch(*groups), step)


def advantages(credited: Credited) -> dict[str, float]:
    return {item.episode.id: item.advantage for item in credited.trains}


def reasons(credited: Credited) -> dict[str, str]:
    return {item.episode.id: item.reason for item in credited.dropped}


def test_credit_is_the_reward_minus_the_mean_of_its_own_group() -> None:
    credited = credit(
        group("g0", scored(1.0), scored(0.0), scored(0.0), scored(0.0)),
        group("g1", scored(1.0), scored(0.5)),
    )
    assert advantages(credited) == {
        "g0-0": 0.75, "g0-1": -0.25, "g0-2": -0.25, "g0-3": -0.25, "g1-0": 0.25, "g1-1": -0.25,
    }  # fmt: skip


def test_a_group_without_spread_trains_nothing() -> None:
    credited = credit(group("g0", scored(1.0), scored(1.0)))
    assert credited.trains == ()
    assert reasons(credited) == {"g0-0": "zero_spread", "g0-1": "zero_spread"}
    assert credited.zero_spread_groups == 1


@pytest.mark.parametrize("fault", [INVALID, FAILED])
def test_faults_of_ours_are_no_reward_and_do_not_move_the_baseline(fault: Outcome) -> None:
    credited = credit(group("g0", scored(1.0), scored(0.0), fault))
    assert advantages(credited) == {"g0-0": 0.5, "g0-1": -0.5}
    assert reasons(credited) == {"g0-2": str(fault.kind)}
    assert [reward for _, reward in credited.rewards] == [1.0, 0.0]


def test_a_truncated_episode_is_treated_as_configured() -> None:
    outcomes = scored(1.0), scored(0.0), TRUNCATED
    assert advantages(credit(group("g0", *outcomes)))["g0-2"] == pytest.approx(-1 / 3)
    dropped = credit(group("g0", *outcomes), truncated="drop")
    assert reasons(dropped) == {"g0-2": "truncated"}


def test_an_episode_whose_group_failed_around_it_has_no_baseline() -> None:
    assert reasons(credit(group("g0", scored(1.0), FAILED))) == {
        "g0-0": "lone",
        "g0-1": "infrastructure_failed",
    }


def test_episodes_beyond_the_staleness_bound_do_not_train() -> None:
    old = credit(group("g0", scored(1.0), scored(0.0), version=3), step=5)
    assert set(reasons(old).values()) == {"stale"}
    assert len(credit(group("g0", scored(1.0), scored(0.0), version=4), step=5).trains) == 2


def test_attempts_that_a_retry_replaced_leave_with_a_reason() -> None:
    replaced = summary("g0-0.0", "g0", FAILED)
    kept = group("g0", scored(1.0), scored(0.0)).episodes
    credited = credit(GroupResult(request("g0", 2), kept, (replaced,)))
    assert reasons(credited) == {"g0-0.0": "infrastructure_failed"}


@pytest.mark.parametrize("step", [0, 7])
def test_an_episode_that_sampled_nothing_is_never_stale(step: int) -> None:
    empty = GroupResult(
        request("g0", 2),
        (
            summary("g0-0", "g0", TRUNCATED, tokens=0, version=-1),
            summary("g0-1", "g0", scored(1.0), version=step),
        ),
    )
    credited = credit(empty, step=step)
    assert advantages(credited) == {"g0-0": -0.5, "g0-1": 0.5}
