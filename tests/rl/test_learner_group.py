"""The learner in Ray actors: two ranks do what one does, and failures are named in time."""

import asyncio
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import ray

from polymath.model import checkpoint
from polymath.model.config import INDEXED, LINEAR, ModelConfig
from polymath.rl.learner.base import LearnerError, NonFiniteError, StateError
from polymath.rl.learner.group import LearnerGroup
from polymath.rl.learner.schema import LearnerConfig
from polymath.rl.losses.schema import AlgorithmConfig
from polymath.rollout.types import Row

pytestmark = pytest.mark.slow

MODEL = ModelConfig(
    path="",
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    layer_types=(LINEAR, INDEXED),
    linear_num_heads=2,
    num_attention_heads=2,
    q_lora_rank=32,
    kv_lora_rank=32,
    index_n_heads=2,
    index_topk=12,
    n_routed_experts=3,
    n_shared_experts=1,
    moe_intermediate_size=32,
)
LEARNER = LearnerConfig(threads=1, learning_rate=1e-3, lane_tokens=48, tokens_per_microbatch=96)


def make_rows(seed, count=7):
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        length = int(generator.integers(3, 40))
        mask = generator.random(length) < 0.6
        mask[0], mask[-1] = False, True
        rows.append(
            Row(
                episode=f"e{index}",
                group=f"g{index // 4}",
                tokens=generator.integers(0, 64, length).astype(np.int32),
                loss_mask=mask,
                logprobs=generator.normal(-4, 0.3, length).astype(np.float32),
                advantages=np.full(length, generator.normal(), np.float32),
                versions=np.zeros(length, np.int32),
            )
        )
    return rows


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def run(work, config=LEARNER, **options):
    """Start a learner, hand it to ``work``, and close it whatever happens."""

    async def whole():
        group = LearnerGroup(config, AlgorithmConfig(), options.pop("model", MODEL), **options)
        try:
            await group.start()
            return await work(group)
        finally:
            await group.close()

    return asyncio.run(whole())


async def train(group, folder):
    """Two steps, then everything there is to compare."""
    results = [await group.step(make_rows(seed)) for seed in (0, 1)]
    update = await group.publish(2, str(folder))
    logprobs = await group.logprobs([row.tokens for row in make_rows(2)])
    tensors = checkpoint.load_tensors(update.path)
    return SimpleNamespace(results=results, update=update, tensors=tensors, logprobs=logprobs)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_and_three_ranks_learn_what_one_does(tmp_path, optimizer):
    config = LEARNER.replace(optimizer=optimizer, compute_dtype="float64")
    one = run(lambda group: train(group, tmp_path / "1"), config)
    for workers in (2, 3):
        several = run(
            lambda group, workers=workers: train(group, tmp_path / str(workers)),
            config.replace(workers=workers),
        )
        for single, other in zip(one.results, several.results, strict=True):
            assert (other.step, other.trained) == (single.step, single.trained)
            assert other.metrics.keys() == single.metrics.keys()
            for name, value in single.metrics.items():
                assert other.metrics[name] == pytest.approx(value, rel=1e-6), name
        for name, tensor in one.tensors.items():
            assert (several.tensors[name] - tensor).abs().max() < 1e-7, name
        for mine, theirs in zip(one.logprobs, several.logprobs, strict=True):
            np.testing.assert_allclose(theirs, mine, atol=1e-5)
        assert several.update.digest == checkpoint.digest(several.tensors)


def test_rows_by_reference_are_the_same_rows(tmp_path):
    async def by_reference(group):
        rows = make_rows(0)
        return await group.step([ray.put(rows[:3]), ray.put(rows[3:])])

    async def by_value(group):
        return await group.step(make_rows(0))

    config = LEARNER.replace(workers=2)
    assert run(by_reference, config) == run(by_value, config)


def test_resuming_is_bitwise_and_other_layouts_follow(tmp_path):
    async def straight(group):
        await group.step(make_rows(0))
        await group.save(str(tmp_path / "state"))
        result = await group.step(make_rows(1))
        return result, (await group.publish(2, str(tmp_path / "straight"))).digest

    async def resumed(group):
        assert await group.load(str(tmp_path / "state")) == 1
        result = await group.step(make_rows(1))
        return result, (await group.publish(2, str(tmp_path / "resumed"))).digest

    two = LEARNER.replace(workers=2)
    expected = run(straight, two)
    assert run(resumed, two) == expected
    result, _ = run(resumed, LEARNER)
    assert result.metrics["loss/total"] == pytest.approx(
        expected[0].metrics["loss/total"], abs=1e-6
    )


def test_damaged_state_is_one_clear_error_and_the_learner_goes_on(tmp_path):
    async def work(group):
        await group.save(str(tmp_path / "state"))
        with pytest.raises(StateError, match="not empty"):
            await group.save(str(tmp_path / "state"))
        file = tmp_path / "state" / "rank-00000.safetensors"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(StateError, match="rank-00000.safetensors is damaged") as error:
            await group.load(str(tmp_path / "state"))
        assert "\n" not in str(error.value)
        return (await group.step(make_rows(0))).step

    assert run(work) == 1


def test_a_bad_reward_stops_all_ranks_and_moves_nothing(tmp_path):
    async def work(group):
        before = (await group.publish(0, str(tmp_path))).digest
        rows = make_rows(0)
        rows[5].advantages[:] = np.nan
        with pytest.raises(NonFiniteError, match="episode e5: advantages hold nan"):
            await group.step(rows)
        assert (await group.publish(1, str(tmp_path))).digest == before
        return (await group.step(make_rows(0))).step

    assert run(work, LEARNER.replace(workers=2)) == 1


def test_a_rank_that_dies_is_named_within_seconds():
    async def work(group):
        os.kill(group.process_ids[1], signal.SIGKILL)
        with pytest.raises(
            LearnerError, match="learner rank 1 died and did not make a step"
        ) as error:
            async with asyncio.timeout(30):
                await group.step(make_rows(0))
        assert "\n" not in str(error.value)
        with pytest.raises(LearnerError, match="cannot make a step: learner rank 1 died"):
            await group.step(make_rows(0))

    run(work, LEARNER.replace(workers=2))


def test_a_rank_that_hangs_is_named_at_the_deadline():
    async def work(group):
        os.kill(group.process_ids[1], signal.SIGSTOP)
        try:
            with pytest.raises(
                LearnerError, match=r"learner rank .*1.* did not make a step within 6 s"
            ):
                await group.step(make_rows(0))
        finally:
            os.kill(group.process_ids[1], signal.SIGCONT)

    run(work, LEARNER.replace(workers=2, step_seconds=6.0))


def test_closing_leaves_no_process_behind():
    async def work(group):
        await group.step(make_rows(0))
        return group.process_ids

    for process_id in run(work, LEARNER.replace(workers=2)):
        asyncio.run(gone(process_id))


async def gone(process_id, seconds=15.0):
    """Return once the process has ended; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                os.kill(process_id, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.1)


def test_a_model_file_cut_in_half_is_one_clear_line(tmp_path):
    async def export(group):
        await group.export(str(tmp_path / "policy"))

    run(export)
    weights = tmp_path / "policy" / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(LearnerError, match="cut short at tensor") as error:
        run(export, model=MODEL.replace(path=str(tmp_path / "policy")))
    assert "\n" not in str(error.value)
