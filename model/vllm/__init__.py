"""The hybrid model inside vLLM, as an out-of-tree plugin (entry point ``vllm.general_plugins``).

vLLM calls ``register`` in each of its processes. This module imports nothing heavy until then.
"""

from __future__ import annotations

from polymath.model.config import ARCHITECTURE, MODEL_TYPE

WEIGHT_BACKEND = "polymath_file"


def register() -> None:
    """Teach this process's vLLM our configuration, model and weight transfer. Safe to call twice."""
    from polymath.model.vllm.lifeline import follow

    follow()
    from transformers import AutoConfig
    from vllm import ModelRegistry
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from polymath.model.vllm.config import PolymathHybridConfig

    AutoConfig.register(MODEL_TYPE, PolymathHybridConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # The class itself: given its name, vLLM would start a process just to inspect it.
        from polymath.model.vllm.hybrid import PolymathHybridForCausalLM

        ModelRegistry.register_model(ARCHITECTURE, PolymathHybridForCausalLM)
    if WEIGHT_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            WEIGHT_BACKEND, "polymath.model.vllm.transfer", "FileWeightTransfer"
        )
