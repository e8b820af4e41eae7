"""The engine computes what the trainer's model computes, whatever vLLM does with the requests."""

import asyncio
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from tests.rollout.engine.conftest import ENGINE, POLICY, Trainer, prompt

from polymath.rollout.engine.base import EngineError, SamplingSpec

pytestmark = pytest.mark.slow

# Float32 noise is a few 1e-6. Where two index scores are that close, the last token selected may be
# another one; with 48 selected that moves a log-probability by less than this.
TOLERANCE = 1e-4


def gather(*calls):
    async def run():
        return await asyncio.gather(*calls)

    return asyncio.run(asyncio.wait_for(run(), 120))


def restore(served):
    """Back to the weights of the start, whatever a test left behind."""
    proof = asyncio.run(served.engine.update_weights(served.trainer.publish(0)))
    assert proof.digest == served.trainer.digest()


def perturbed(trainer, seed):
    other = Trainer.fresh(seed, trainer.folder)
    with torch.no_grad():
        for ours, theirs in zip(other.model.parameters(), trainer.model.parameters(), strict=True):
            ours.copy_(theirs + 0.05 * torch.randn_like(theirs) * theirs.std().nan_to_num(0.0))
    return other


def test_first_proof_is_the_trainers(served):
    proof = served.proof
    assert proof.digest == served.trainer.digest()
    tokens = [*proof.canary_prompt, *proof.canary_tokens]
    expected = served.trainer.logprobs(tokens, len(proof.canary_prompt))
    assert np.abs(expected - np.array(proof.canary_logprobs)).max() <= TOLERANCE


def test_logprobs_equal_the_trainers_in_mixed_steps_and_chunked_prefill(served):
    # 160 tokens a step: long prompts are chunked while others decode.
    lengths = [1, 2, 15, 16, 17, 63, 64, 65, 129, 300, 511, 600]
    prompts = [prompt(index, length) for index, length in enumerate(lengths)]

    async def run():
        async def one(index):
            await asyncio.sleep(0.03 * index)
            return await served.engine.generate(f"m{index}", prompts[index], SamplingSpec(60))

        return await asyncio.gather(*(one(index) for index in range(len(prompts))))

    for given, generation in zip(prompts, asyncio.run(run()), strict=True):
        assert generation.finish in ("length", "stop")
        assert len(generation.tokens) == 60 or generation.tokens[-1] == POLICY.eos_token_id
        assert set(generation.versions.tolist()) == {0}
        assert served.trainer.error(given, generation) <= TOLERANCE, len(given)


def test_behaviour_logprobs_are_those_after_temperature_and_top_p(served):
    given = prompt(50, 40)
    (generation,) = gather(
        served.engine.generate("t", given, SamplingSpec(24, temperature=0.7, top_p=0.8))
    )
    tokens = [*given.tolist(), *generation.tokens.tolist()]
    with torch.no_grad():
        hidden = served.trainer.model(torch.tensor(tokens)[None]).hidden
        logits = served.trainer.model.logits(hidden)[0].double() / 0.7
    for place, (token, logprob) in enumerate(
        zip(generation.tokens, generation.logprobs, strict=True), start=len(given) - 1
    ):
        probabilities, order = logits[place].softmax(-1).sort(descending=True)
        # The smallest set of tokens that reaches the mass, the one that reaches it included.
        kept = order[: int((probabilities.cumsum(0) < 0.8).sum()) + 1]
        mass = probabilities[: len(kept)].sum()
        expected = (probabilities[(kept == int(token)).nonzero().item()] / mass).log()
        assert abs(float(expected) - logprob) <= TOLERANCE


def test_turns_of_an_episode_reuse_the_prefix_and_stay_exact(served):
    context, reused = prompt(60, 150), []
    for turn in range(4):
        (generation,) = gather(served.engine.generate(f"e{turn}", context, SamplingSpec(70)))
        reused.append(generation.cached_tokens)
        assert served.trainer.error(context, generation) <= TOLERANCE, f"turn {turn}"
        context = np.concatenate([context, generation.tokens, prompt(61 + turn, 40)])
    assert reused[0] == 0
    # All whole blocks of the context before, at least up to its prompt.
    assert all(later > 0 for later in reused[1:]), reused
    assert reused == sorted(reused)


def test_a_prefix_whose_state_was_not_kept_is_no_hit_on_garbage(served):
    """Attention pages of the first blocks exist, recurrent states only where steps ended."""
    long = prompt(70, 500)
    gather(served.engine.generate("long", long, SamplingSpec(4)))
    for shared in (30, 64, 100, 128, 200, 256, 333, 448, 499):
        given = np.concatenate([long[:shared], prompt(71 + shared, 30)])
        (generation,) = gather(served.engine.generate(f"s{shared}", given, SamplingSpec(8)))
        assert generation.cached_tokens <= shared
        assert served.trainer.error(given, generation) <= TOLERANCE, shared


def test_requests_that_share_a_prompt_stay_apart(served):
    given = prompt(80, 200)
    calls = [served.engine.generate(f"g{i}", given, SamplingSpec(40)) for i in range(8)]
    generations = gather(*calls)
    assert len({tuple(generation.tokens) for generation in generations}) > 1
    for generation in generations:
        assert served.trainer.error(given, generation) <= TOLERANCE


def test_update_in_flight_gives_every_token_its_version(served):
    new = perturbed(served.trainer, 1)
    prompts = [prompt(90 + index, 40 + 70 * index) for index in range(4)]
    sampling = SamplingSpec(300)

    async def run():
        tasks = [
            asyncio.ensure_future(served.engine.generate(f"u{index}", given, sampling))
            for index, given in enumerate(prompts)
        ]
        while (await served.engine.stats()).sampled_tokens == before and not any(
            task.done() for task in tasks
        ):
            await asyncio.sleep(0.05)
            if (await served.engine.stats()).running == len(prompts):
                break
        await asyncio.sleep(0.4)
        proof = await served.engine.update_weights(new.publish(7))
        return proof, await asyncio.gather(*tasks)

    before = asyncio.run(served.engine.stats()).sampled_tokens
    proof, generations = asyncio.run(asyncio.wait_for(run(), 120))
    assert (proof.version, proof.digest) == (7, new.digest())
    crossed = 0
    for given, generation in zip(prompts, generations, strict=True):
        versions = generation.versions.tolist()
        assert versions == sorted(versions)
        crossed += set(versions) == {0, 7}
        tokens = [*given.tolist(), *generation.tokens.tolist()]
        by_version = {0: served.trainer, 7: new}
        for version in set(versions):
            mine = generation.versions == version
            expected = by_version[version].logprobs(tokens, len(given))
            assert np.abs(expected - generation.logprobs)[mine].max() <= TOLERANCE, version
    assert crossed > 0
    restore(served)


def test_prefixes_of_old_weights_are_never_reused(served):
    new = perturbed(served.trainer, 2)
    given = prompt(100, 300)
    gather(served.engine.generate("old", given, SamplingSpec(4)))
    (warm,) = gather(served.engine.generate("warm", given, SamplingSpec(4)))
    assert warm.cached_tokens > 0
    gather(served.engine.update_weights(new.publish(1)))
    (cold,) = gather(served.engine.generate("cold", given, SamplingSpec(30)))
    assert cold.cached_tokens == 0
    assert set(cold.versions.tolist()) == {1}
    assert new.error(given, cold) <= TOLERANCE
    restore(served)


@pytest.mark.parametrize("name", ["experts.gate_up_proj", "experts.down_proj", "gate.e_score"])
def test_an_update_of_expert_tensors_reaches_the_computation(served, name):
    """vLLM's fused experts on the CPU keep prepacked old weights over a reload; ours are plain."""
    other = Trainer.fresh(0, served.trainer.folder)
    tensors = [tensor for key, tensor in other.model.state_dict().items() if name in key]
    assert tensors
    torch.manual_seed(3)
    for tensor in tensors:
        tensor.add_(torch.randn_like(tensor) * 0.3)
    (proof,) = gather(served.engine.update_weights(other.publish(1)))
    tokens = [*proof.canary_prompt, *proof.canary_tokens]
    expected = other.logprobs(tokens, len(proof.canary_prompt))
    stale = served.trainer.logprobs(tokens, len(proof.canary_prompt))
    assert np.abs(expected - np.array(proof.canary_logprobs)).max() <= TOLERANCE
    assert np.abs(stale - expected).max() > 100 * TOLERANCE
    restore(served)


def flipped(state):
    """One bit of one number, the lowest."""
    tensor = state["model.layers.2.self_attn.o_proj.weight"]
    tensor.view(torch.int32)[5, 5] ^= 1
    return state


def test_one_flipped_bit_is_noticed_and_nothing_is_served(served):
    damaged = served.trainer.publish(3, flipped(served.trainer.state()))
    assert damaged.digest != served.trainer.digest()
    claimed = replace(damaged, digest=served.trainer.digest())
    with pytest.raises(EngineError, match="version 3"):
        gather(served.engine.update_weights(claimed))
    with pytest.raises(EngineError, match="refuses to serve"):
        gather(served.engine.generate("x", prompt(0, 20), SamplingSpec(4)))
    restore(served)
    (generation,) = gather(served.engine.generate("y", prompt(0, 20), SamplingSpec(4)))
    assert served.trainer.error(prompt(0, 20), generation) <= TOLERANCE


def without(state):
    del state["model.layers.0.self_attn.A_log"]
    return state


def with_more(state):
    state["model.layers.0.self_attn.extra"] = torch.zeros(1)
    return state


def misshapen(state):
    state["model.layers.1.self_attn.indexer.wk.weight"] = torch.zeros(32, 32)
    return state


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (without, "self_attn.A_log"),
        (with_more, "self_attn.extra"),
        (misshapen, "indexer.wk.weight"),
    ],
)
def test_wrong_tensors_are_refused_by_name(served, change, name):
    update = served.trainer.publish(4, change(served.trainer.state()))
    with pytest.raises(EngineError, match=name) as caught:
        gather(served.engine.update_weights(update))
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match="refuses to serve"):
        gather(served.engine.generate("x", prompt(0, 20), SamplingSpec(4)))
    restore(served)


def test_a_weight_file_cut_short_is_refused(served, tmp_path):
    update = served.trainer.publish(5)
    short = tmp_path / "short.safetensors"
    with open(update.path, "rb") as whole:
        short.write_bytes(whole.read()[:-100])
    with pytest.raises(EngineError, match=r"short\.safetensors"):
        gather(served.engine.update_weights(replace(update, path=str(short))))
    restore(served)


def test_waiting_requests_hear_of_a_failed_update(served):
    async def run():
        await served.engine.pause()
        waiting = asyncio.ensure_future(served.engine.generate("w", prompt(0, 20), SamplingSpec(4)))
        await asyncio.sleep(0.1)
        update = served.trainer.publish(6, without(served.trainer.state()))
        with pytest.raises(EngineError):
            await served.engine.update_weights(update)
        with pytest.raises(EngineError, match="refuses to serve"):
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    restore(served)
    gather(served.engine.resume())


def test_pause_keeps_what_was_sampled_and_resume_goes_on(served):
    given = prompt(110, 50)

    async def run():
        task = asyncio.ensure_future(served.engine.generate("p", given, SamplingSpec(400)))
        await asyncio.sleep(0.4)
        await served.engine.pause()
        sampled = (await served.engine.stats()).sampled_tokens
        await asyncio.sleep(0.2)
        paused = await served.engine.stats()
        assert (paused.running, paused.sampled_tokens) == (0, sampled)
        await served.engine.resume()
        return await task

    generation = asyncio.run(asyncio.wait_for(run(), 60))
    assert served.trainer.error(given, generation) <= TOLERANCE


def test_abort_returns_what_there_is_running_or_paused(served):
    given = prompt(120, 50)

    async def run():
        task = asyncio.ensure_future(served.engine.generate("a", given, SamplingSpec(900)))
        await asyncio.sleep(0.4)
        await served.engine.abort("a")
        running = await task
        await served.engine.pause()
        task = asyncio.ensure_future(served.engine.generate("b", given, SamplingSpec(900)))
        await asyncio.sleep(0.1)
        await served.engine.abort("b")
        waiting = await task
        await served.engine.resume()
        await served.engine.abort("never seen")
        return running, waiting

    running, waiting = asyncio.run(asyncio.wait_for(run(), 60))
    assert (running.finish, waiting.finish) == ("abort", "abort")
    assert 0 < len(running.tokens) < 900
    assert len(waiting.tokens) == 0
    assert served.trainer.error(given, running) <= TOLERANCE


def test_a_prompt_that_leaves_no_room_is_an_error(served):
    with pytest.raises(EngineError, match="max_model_len is 1024"):
        gather(served.engine.generate("long", prompt(0, 1024), SamplingSpec(4)))


def test_a_context_that_fills_up_ends_by_length(served):
    given = prompt(131, 1000)
    (generation,) = gather(served.engine.generate("full", given, SamplingSpec(400)))
    assert generation.finish in ("length", "stop")
    assert len(given) + len(generation.tokens) <= ENGINE.max_model_len
    assert served.trainer.error(given, generation) <= TOLERANCE


def test_figures_count_tokens_once(served):
    before = asyncio.run(served.engine.stats())
    given = prompt(140, 100)
    (generation,) = gather(served.engine.generate("s", given, SamplingSpec(10)))
    after = asyncio.run(served.engine.stats())
    assert after.prompt_tokens - before.prompt_tokens == len(given)
    assert after.sampled_tokens - before.sampled_tokens == len(generation.tokens)
    assert after.busy_seconds > before.busy_seconds
    assert (after.running, after.version) == (0, 0)


def test_sigkill_of_the_actor_leaves_no_engine_process(served):
    """Last: it ends the engine of this module."""
    actor = psutil.Process(int(asyncio.run(served.engine.stats()).labels["pid"]))
    children = actor.children(recursive=True)
    assert any("EngineCore" in child.name() for child in children), [c.name() for c in children]
    actor.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, [child.name() for child in alive]
    with pytest.raises(EngineError, match="e0 died"):
        gather(served.engine.generate("x", prompt(0, 20), SamplingSpec(4)))
