import re
from typing import Any, cast

import pytest

from polymath.configs import compose
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.learning_rate=nan", "learner.learning_rate=nan: it must be above 0"),
        ("rollout.temperature=-1", "rollout.temperature=-1.0: it must be above 0"),
        ("rollout.top_p=2", "rollout.top_p=2.0: it must be above 0 and at most 1"),
        ("rollout.truncated=bar", "rollout.truncated=bar: it can be floor, drop"),
        ("resume=banana", "resume=banana: it can be never, auto"),
        ("sandbox.backend=foo", "sandbox.backend=foo: it can be auto, bubblewrap"),
        ("engine.kind=foo", "engine.kind=foo: it can be vllm"),
        ("mixture.domains.terminal/csv-join.weight=-3", "terminal/csv-join.weight=-3.0"),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_anything_starts(
    override: str, message: str
) -> None:
    composed = compose("train", ["experiment=quickstart", override])
    with pytest.raises(UserError, match=re.escape(message)):
        check(cast(TrainConfig, composed.config))
