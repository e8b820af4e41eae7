"""The shape of the policy: names, defaults and checks. Nothing here loads torch.

Field names follow transformers' ``glm5_next`` and the Kimi checkpoints, so that ``config.json`` of
a saved policy is one that Hugging Face tools and vLLM read. The defaults are the starter policy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from polymath.configs import Section
from polymath.errors import UserError

MODEL_TYPE = "polymath_hybrid"
ARCHITECTURE = "PolymathHybridForCausalLM"

LINEAR = "linear_attention"
INDEXED = "indexed_attention"

# Quantised weights share one scale per 32 inputs.
BLOCK = 32

# Half a chunk of the strongest decay must survive exp() in float32, with room for the products.
MAX_HALF_CHUNK_DECAY = 40.0


class ModelConfigError(UserError, ValueError):
    """A model configuration that cannot be built; the message names the field."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture of the hybrid policy, and where its weights come from."""

    path: str = "starter"
    "Checkpoint folder to start from; `starter` is the packaged one, empty means fresh weights."

    vocab_size: int = 1024
    "Rows of the token embedding."
    hidden_size: int = 128
    "Width of the residual stream."
    num_hidden_layers: int = 4
    "Number of layers."
    layer_types: tuple[str, ...] = (LINEAR, LINEAR, LINEAR, INDEXED)
    "Per layer: `linear_attention` (KDA) or `indexed_attention` (sparse latent attention)."

    linear_num_heads: int = 4
    "Heads of the linear layers."
    linear_head_dim: int = 32
    "Width of a linear head: of its keys and of its values."
    linear_conv_kernel_dim: int = 4
    "Taps of the causal convolution before a linear layer."
    linear_lower_bound: float = -5.0
    "Strongest log-decay per token, negative."
    chunk_size: int = 16
    "Tokens that a linear layer treats at once; packed documents start at multiples of it."

    num_attention_heads: int = 4
    "Heads of the sparse layers."
    q_lora_rank: int = 128
    "Width of the latent that queries and index queries are made from."
    kv_lora_rank: int = 64
    "Width of the latent that is cached per token."
    qk_nope_head_dim: int = 32
    "Width of a query or key head that carries no position."
    qk_rope_head_dim: int = 0
    "Width of the rotated part of a head; this version has none."
    v_head_dim: int = 32
    "Width of a value head."
    index_n_heads: int = 4
    "Heads of the indexer."
    index_head_dim: int = 32
    "Width of an index head."
    index_topk: int = 64
    "Tokens that the indexer selects for each query."

    n_routed_experts: int = 8
    "Routed experts of a layer."
    num_experts_per_tok: int = 2
    "Experts that a token visits."
    n_shared_experts: int = 2
    "Experts that every token visits, fused into one of their joint width; 0 for none."
    moe_intermediate_size: int = 128
    "Hidden width of one expert."
    first_k_dense_replace: int = 0
    "The first layers have one dense MLP in place of experts."
    intermediate_size: int = 512
    "Hidden width of a dense MLP."
    norm_topk_prob: bool = True
    "Whether the weights of the chosen experts are made to sum to one."
    routed_scaling_factor: float = 1.0
    "Factor on the output of the routed experts."

    rms_norm_eps: float = 1e-5
    "Added to the mean square before its root."
    embedding_multiplier: float = 128**0.5
    "Factor on token embeddings; the root of the width when they are tied to the output."
    tie_word_embeddings: bool = True
    "Whether the output matrix is the embedding."
    max_position_embeddings: int = 16384
    "Longest context that the policy is meant for; no weight depends on it."
    pad_token_id: int = 0
    "Token that fills unused places."
    eos_token_id: int = 1
    "Token that ends a turn."

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        self._check_layers()
        self._check_sizes()
        self._check_values()

    def _check_layers(self) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ModelConfigError(
                f"layer_types has {len(self.layer_types)} entries, "
                f"num_hidden_layers is {self.num_hidden_layers}"
            )
        for index, kind in enumerate(self.layer_types):
            if kind not in (LINEAR, INDEXED):
                raise ModelConfigError(
                    f"layer_types[{index}] is {kind!r}, expected {LINEAR!r} or {INDEXED!r}"
                )
        if not 0 <= self.first_k_dense_replace <= self.num_hidden_layers:
            raise ModelConfigError(
                f"first_k_dense_replace is {self.first_k_dense_replace}, "
                f"num_hidden_layers is {self.num_hidden_layers}"
            )

    def _check_sizes(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ModelConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in _BLOCKED:
            if getattr(self, name) % BLOCK:
                raise ModelConfigError(
                    f"{name} is {getattr(self, name)}, expected a multiple of {BLOCK}"
                )
        if self.qk_rope_head_dim:
            raise ModelConfigError(
                f"qk_rope_head_dim is {self.qk_rope_head_dim}, this version has no rotation (0)"
            )

    def _check_values(self) -> None:
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ModelConfigError(
                f"num_experts_per_tok is {self.num_experts_per_tok}, "
                f"n_routed_experts is {self.n_routed_experts}"
            )
        if self.n_shared_experts < 0:
            raise ModelConfigError(
                f"n_shared_experts is {self.n_shared_experts}, expected 0 or more"
            )
        if self.linear_lower_bound >= 0:
            raise ModelConfigError(
                f"linear_lower_bound is {self.linear_lower_bound}, expected less than 0"
            )
        if self.chunk_size % 2 or (
            -self.linear_lower_bound * self.chunk_size / 2 > MAX_HALF_CHUNK_DECAY
        ):
            raise ModelConfigError(
                f"chunk_size is {self.chunk_size}, expected an even number with at most "
                f"{MAX_HALF_CHUNK_DECAY:g} of decay in half of it (linear_lower_bound "
                f"{self.linear_lower_bound:g} per token)"
            )
        for name in ("pad_token_id", "eos_token_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ModelConfigError(
                    f"{name} is {getattr(self, name)}, vocab_size is {self.vocab_size}"
                )

    @property
    def linear_width(self) -> int:
        """Joint width of the linear heads."""
        return self.linear_num_heads * self.linear_head_dim

    def architecture(self) -> dict[str, Any]:
        """All fields that the weights depend on: everything but ``path``."""
        return {name: value for name, value in self.to_dict().items() if name != "path"}

    def to_json(self) -> str:
        """The text of ``config.json``."""
        head = {"model_type": MODEL_TYPE, "architectures": [ARCHITECTURE]}
        return json.dumps({**head, **self.architecture()}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str = "") -> Self:
        """Read ``config.json``. Keys that Hugging Face tools add are ignored.

        Raises:
            ModelConfigError: another family, a missing field, or values that do not fit.
        """
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ModelConfigError(f"{path or 'config.json'} is not JSON: {error}") from error
        if not isinstance(found, Mapping) or found.get("model_type") != MODEL_TYPE:
            family = found.get("model_type") if isinstance(found, Mapping) else found
            raise ModelConfigError(
                f"{path or 'config.json'}: model_type is {family!r}, expected {MODEL_TYPE!r}"
            )
        names = [field.name for field in dataclasses.fields(cls) if field.name != "path"]
        missing = [name for name in names if name not in found]
        if missing:
            raise ModelConfigError(f"{path or 'config.json'}: {missing[0]} is missing")
        return cls(path=path, **{name: found[name] for name in names})

    def require_same(self, found: ModelConfig, where: str) -> None:
        """Raise ``ModelConfigError`` that names the first field in which ``found`` differs."""
        wanted = self.architecture()
        for name, value in found.architecture().items():
            if value != wanted[name]:
                raise ModelConfigError(
                    f"{where}: {name} is {value}, the configuration says {wanted[name]}"
                )


def resolve(path: str) -> Path:
    """The folder behind ``ModelConfig.path``: ``starter`` is the one packaged with Polymath."""
    return Path(__file__).parent / "starter" if path == "starter" else Path(path).expanduser()


def read(path: str) -> ModelConfig:
    """The configuration of a checkpoint folder.

    Raises:
        ModelConfigError: no ``config.json`` there, or one that does not fit.
    """
    file = resolve(path) / "config.json"
    try:
        text = file.read_text()
    except OSError as error:
        raise ModelConfigError(f"{file}: cannot be read ({error.strerror})") from error
    try:
        return ModelConfig.from_json(text, path)
    except ModelConfigError as error:
        raise ModelConfigError(str(error).replace(path, str(file), 1)) from error


_BLOCKED = (
    "vocab_size",
    "hidden_size",
    "linear_head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "moe_intermediate_size",
    "intermediate_size",
)

_POSITIVE = (
    *_BLOCKED,
    "num_hidden_layers",
    "linear_num_heads",
    "linear_conv_kernel_dim",
    "chunk_size",
    "num_attention_heads",
    "index_n_heads",
    "index_topk",
    "n_routed_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
)
