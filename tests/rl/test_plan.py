from typing import Any

import pytest

from polymath.errors import UserError
from polymath.rl.plan import check
from polymath.rl.schema import DemonstrationConfig, EvaluationConfig, SupervisedConfig, TrainConfig
from polymath.rollout.schema import EngineConfig, RolloutConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0: it must be at least 1"),
        ({"group_size": 1}, "group_size=1: it must be at least 2"),
        ({"staleness": -1}, "staleness=-1"),
        ({"engine": EngineConfig(count=0)}, "engine.count=0"),
        ({"rollout": RolloutConfig(workers=0)}, "rollout.workers=0"),
        ({"evaluation": EvaluationConfig(seeds_per_level=128)}, "at most 127"),
        ({"rollout": RolloutConfig(max_episode_tokens=4097)}, "at most engine.max_model_len=4096"),
    ],
)
def test_a_number_that_cannot_work_is_refused_before_anything_starts(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check(TrainConfig(**changes))


def test_supervised_stages_need_data() -> None:
    none = DemonstrationConfig(imperfect_episodes=0)
    check(SupervisedConfig(demonstrations=none, soften_steps=0))
    with pytest.raises(UserError, match="demonstrations.imperfect_episodes=0"):
        check(SupervisedConfig(demonstrations=none))


def test_the_defaults_can_work() -> None:
    check(TrainConfig())
    check(SupervisedConfig())
