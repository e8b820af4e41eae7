"""One tiny random policy, and one engine that serves it, for all tests here."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from polymath.model import checkpoint
from polymath.model.config import INDEXED, LINEAR, ModelConfig
from polymath.model.hybrid import HybridForCausalLM
from polymath.rollout.engine.base import Generation, WeightProof, WeightUpdate
from polymath.rollout.schema import EngineConfig

# Two sparse layers, selections much smaller than contexts, odd numbers of heads.
POLICY = ModelConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=5,
    layer_types=(LINEAR, INDEXED, LINEAR, LINEAR, INDEXED),
    linear_num_heads=3,
    linear_head_dim=32,
    num_attention_heads=3,
    q_lora_rank=64,
    kv_lora_rank=32,
    index_n_heads=2,
    index_topk=48,
    n_routed_experts=4,
    moe_intermediate_size=32,
    intermediate_size=64,
    embedding_multiplier=8.0,
    first_k_dense_replace=1,
)

ENGINE = EngineConfig(
    max_model_len=1024,
    max_running=12,
    max_batched_tokens=160,
    block_tokens=64,
    kv_cache_gb=0.25,
    start_seconds=200.0,
)


@dataclass
class Trainer:
    """The learner's torch model at one version, and where that version is published."""

    model: HybridForCausalLM
    folder: Path

    @classmethod
    def fresh(cls, seed: int, folder: Path) -> "Trainer":
        torch.manual_seed(seed)
        model = HybridForCausalLM(POLICY)
        model.init_weights()
        # Index scores of a fresh policy are small: spread them, so that selections differ.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "indexer" in name:
                    parameter.mul_(2.0)
        return cls(model.eval(), folder)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def digest(self) -> str:
        return checkpoint.digest(self.model.state_dict())

    def publish(self, version: int, state: dict[str, torch.Tensor] | None = None) -> WeightUpdate:
        path = self.folder / f"version-{version}.safetensors"
        digest = checkpoint.save_tensors(path, self.state() if state is None else state)
        return WeightUpdate(version, str(path), digest)

    def logprobs(self, tokens: list[int], start: int) -> np.ndarray:
        """Log-probabilities of ``tokens[start:]``, in one pass over the whole context."""
        ids = torch.tensor(tokens, dtype=torch.int64)
        with torch.no_grad():
            logits = self.model.logits(self.model(ids[None]).hidden)[0]
        chosen = logits.double().log_softmax(-1)[start - 1 : -1].gather(1, ids[start:, None])
        return chosen[:, 0].numpy()

    def error(self, prompt: np.ndarray, generation: Generation) -> float:
        """Largest difference between the engine's log-probabilities and this model's."""
        tokens = [*prompt.tolist(), *generation.tokens.tolist()]
        return float(np.abs(self.logprobs(tokens, len(prompt)) - generation.logprobs).max())


@dataclass
class Served:
    """A running engine and the trainer whose weights it started with."""

    engine: object
    trainer: Trainer
    proof: WeightProof


@pytest.fixture(scope="module")
def cluster():
    """A cluster for one module: what comes after must find none."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    trainer = Trainer.fresh(0, folder)
    checkpoint.save(folder / "v0", POLICY, trainer.model.state_dict())
    return folder


@pytest.fixture(scope="module")
def served(cluster, policy_folder, tmp_path_factory):
    from polymath.rollout.engine.actor import start_engine

    logs = tmp_path_factory.mktemp("logs")
    engine = start_engine(ENGINE, str(policy_folder / "v0"), "e0", log_folder=str(logs))
    proof = asyncio.run(engine.start())
    yield Served(engine, Trainer.fresh(0, policy_folder), proof)
    asyncio.run(engine.close())


def prompt(seed: int, length: int) -> np.ndarray:
    """Random token ids without special ones."""
    return np.random.default_rng(seed).integers(64, POLICY.vocab_size, length).astype(np.int32)
