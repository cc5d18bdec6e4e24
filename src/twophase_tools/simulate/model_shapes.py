"""What models ask of the hardware: weights, and bytes of K/V per token."""

import math
from dataclasses import dataclass, replace
from typing import Any

from twophase.core.errors import ConfigError, ModelFolderError
from twophase.memory import kv_bytes_per_token
from twophase_features.experts.config import ExpertsConfig
from twophase_features.quantization.schemes import GPU_SCALE_BYTES, SCHEMES, Scheme, head_scheme

BFLOAT16_BYTES = 2
SIZES = (  # that `ModelConfig` has under the same names
    "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "tie_word_embeddings", "max_position_embeddings", "qk_norm", "experts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama-family model's sizes, under the names of its config.json; weights and cache in bfloat16 by default.

    Attributes:
        value_bytes: Of a weight or an activation.
        scheme, head_scheme: What the weights of the layers' products, and of the projection to the vocabulary, are
            rounded to; None: they are not.
        scale_bytes: Of a scale of theirs, or of a minimum: on a GPU, unless said otherwise.
        kv_value_bytes, kv_scale_bytes: Of a value in the cache, and of the scale that a token's values of one head
            share when they are quantised.
        max_position_embeddings: The longest context, in tokens.
        qk_norm: Whether each layer has gains for the heads of its queries and keys.
        experts: Of a mixture of experts; `intermediate_size` is then of the layers that have one MLP, if any.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    source: str
    value_bytes: int = BFLOAT16_BYTES
    scheme: Scheme | None = None
    head_scheme: Scheme | None = None
    scale_bytes: int = GPU_SCALE_BYTES
    kv_value_bytes: int = BFLOAT16_BYTES
    kv_scale_bytes: int = 0
    max_position_embeddings: int = 8192
    qk_norm: bool = False
    experts: ExpertsConfig | None = None

    def quantized(self, name: str | None) -> "ModelShape":
        """With its weights rounded as `quantization=name` rounds them; None: as they are."""
        if name is None:
            return self
        return replace(self, scheme=SCHEMES[name], head_scheme=head_scheme(SCHEMES[name]))

    def why_not_quantized(self, name: str) -> str | None:
        """Why the engine refuses `quantization=name` when it loads these weights; None: it does not."""
        if self.scheme is not None:
            return f"rounds plain weights, but the weights in {self.name} are already quantised"
        size = SCHEMES[name].group_size or 1
        for inputs in (self.hidden_size, self.num_heads * self.head_dim, self.intermediate_size):
            if inputs % size:
                return (
                    f"rounds in groups of {size}, which do not divide a layer of {inputs} inputs; take smaller groups"
                )
        return None

    @property
    def layer_params(self) -> int:
        """Weights of all layers' products: q, k, v, o, gate, up, down, all experts; not the norms, which are one in ten
        thousand, nor the routers."""
        return self._layer_params(0 if self.experts is None else self.experts.num_experts)

    @property
    def active_layer_params(self) -> int:
        """Those that a token is multiplied by: of the experts, its own, and the routers."""
        k = 0 if self.experts is None else self.experts.num_experts_per_tok
        return self._layer_params(k) + self.router_params

    @property
    def router_params(self) -> int:
        """Weights of all layers' routers. Every GPU has them whole."""
        return 0 if self.experts is None else self._num_sparse_layers * self.hidden_size * self.experts.num_experts

    def read_layer_params(self, num_tokens: int | float) -> float | int:
        """Those that a step of so many tokens reads, if each chooses its K of E experts at random: an expert is read
        unless no token chooses it, so E (1 - (1 - K / E)^tokens) of them are."""
        if self.experts is None:
            return self.layer_params
        e, k = self.experts.num_experts, self.experts.num_experts_per_tok
        return self._layer_params(e * (1 - (1 - k / e) ** num_tokens)) + self.router_params

    @property
    def _num_sparse_layers(self) -> int:
        return 0 if self.experts is None else len(self.experts.sparse_layers)

    def _layer_params(self, num_experts: float | int) -> Any:
        """With so many experts in each layer that has any."""
        attention = self.num_layers * 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        rows: float | int = (self.num_layers - self._num_sparse_layers) * self.intermediate_size
        if self.experts is not None:
            rows += self._num_sparse_layers * num_experts * self.experts.intermediate_size
        return attention + 3 * self.hidden_size * rows

    @property
    def layer_value_bytes(self) -> float | int:
        """Of a weight of the layers' products, with its share of a scale. With a scale per output they are counted as
        if every product had `hidden_size` inputs: scales are one byte in three hundred, or fewer. Not counted is what a
        GPU's kernel fills rows up with, to a multiple of 64 bytes: most models' rows are one."""
        return self._value_bytes(self.scheme)

    @property
    def output_value_bytes(self) -> float | int:
        """Of a weight of the projection to the vocabulary, likewise."""
        return self._value_bytes(self.head_scheme)

    def _value_bytes(self, scheme: Scheme | None) -> float | int:
        if scheme is None:
            return self.value_bytes
        return scheme.num_bytes(1, self.hidden_size, self.scale_bytes) / self.hidden_size

    @property
    def output_params(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Weights that a step of many tokens reads. An embedding table of its own is not among them: a step reads a few
        rows."""
        products = self.layer_value_bytes * self.layer_params + self.output_value_bytes * self.output_params
        return math.ceil(products) + self.value_bytes * self.router_params

    @property
    def memory_bytes(self) -> int:
        """Weights that must be stored."""
        return self.memory_bytes_on(1)

    def memory_bytes_on(self, num_gpus: int) -> int:
        """Weights that each of `num_gpus` must store, as the engine does: its share of the layers and of the output
        projection, and the whole embedding, whose rows a tied output projection uses where they are unless it is
        rounded, and routers.

        Worked example: hidden 8, MLP 16, vocabulary 10, 960 weights in the layers, on 2 GPUs: 480 + 80, and 40 if the
        output projection has weights of its own; 2 bytes each.
        """
        shares_rows = self.tie_word_embeddings and self.head_scheme is None
        output_params = 0 if shares_rows else self.hidden_size * -(-self.vocab_size // num_gpus)
        whole_params = self.router_params + self.vocab_size * self.hidden_size
        products = self.layer_value_bytes * -(-self.layer_params // num_gpus) + self.output_value_bytes * output_params
        return math.ceil(products) + self.value_bytes * whole_params

    @property
    def kv_bytes_per_token(self) -> int:
        per_value, per_scale = self.kv_value_bytes, self.kv_scale_bytes
        return kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, per_value, per_scale)


_LLAMA_3 = "arXiv:2407.21783, table 3; vocabulary of config.json"
_SMOLLM2 = "config.json of HuggingFaceTB/SmolLM2-135M-Instruct"
MODELS = {
    "smollm2-135m": ModelShape("SmolLM2-135M", 576, 1536, 30, 9, 3, 64, 49152, True, _SMOLLM2),
    "llama-3-8b": ModelShape("Llama-3-8B", 4096, 14336, 32, 32, 8, 128, 128256, False, _LLAMA_3),
    "llama-3-70b": ModelShape("Llama-3-70B", 8192, 28672, 80, 64, 8, 128, 128256, False, _LLAMA_3),
}


def model_shape(name: str) -> ModelShape:
    """A model of `MODELS`, or what a folder's or hub id's config.json says.

    Raises:
        ConfigError: No such model.
    """
    if name in MODELS:
        return MODELS[name]
    from twophase.model.config import load_config
    from twophase_features.model_store.prepare import resolve_model

    try:
        config = load_config(resolve_model(name))
    except ModelFolderError as error:
        raise ConfigError(f"the model shapes known by name are {', '.join(MODELS)}; {error}") from error
    if config.is_mixed:
        raise ConfigError(
            f"{name} has layers that see all keys and layers that see a window, and this arithmetic knows one kind of "
            f"layer: a token takes blocks for as long as its layers see it, which differs. Choose another model."
        )
    scheme = None if config.quantization is None else config.quantization.scheme
    sizes = {name: getattr(config, name) for name in SIZES}
    return ModelShape(name=name, source="its config.json", scheme=scheme, **sizes)
