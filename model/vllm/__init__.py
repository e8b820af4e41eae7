"""The hybrid model inside vLLM, as an out-of-tree plugin (entry point ``vllm.general_plugins``).

vLLM calls ``register`` in each of its processes. It names the classes and imports none of them;
vLLM imports them when a checkpoint of ours is opened.
"""

from __future__ import annotations

MODEL_TYPE = "polymath_hybrid"
ARCHITECTURE = "PolymathHybridForCausalLM"
WEIGHT_BACKEND = "polymath_file"


def register() -> None:
    """Teach this process's vLLM our configuration, model and weight transfer. Safe to call twice."""
    from transformers import AutoConfig
    from vllm import ModelRegistry
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from polymath.model.vllm.config import PolymathHybridConfig
    from polymath.model.vllm.lifeline import follow

    AutoConfig.register(MODEL_TYPE, PolymathHybridConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"polymath.model.vllm.hybrid:{ARCHITECTURE}")
    if WEIGHT_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            WEIGHT_BACKEND, "polymath.model.vllm.transfer", "FileWeightTransfer"
        )
    follow()
