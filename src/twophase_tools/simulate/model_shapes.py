"""What models ask of the hardware: weights, and bytes of K/V per token."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError, ModelFolderError
from twophase.core.sizes import kv_bytes_per_token

BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama-family model's sizes, under the names of its config.json; weights and cache in bfloat16 by default.

    Attributes:
        value_bytes: Of a weight or an activation.
        kv_value_bytes, kv_scale_bytes: Of a value in the cache, and of the scale that a token's values of one head
            share when they are quantised.
        max_position_embeddings: The longest context, in tokens.
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
    kv_value_bytes: int = BFLOAT16_BYTES
    kv_scale_bytes: int = 0
    max_position_embeddings: int = 8192

    @property
    def layer_params(self) -> int:
        """Weights of all layers' products: q, k, v, o, gate, up, down; not the norms, which are one in ten thousand."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def output_params(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Weights that every step reads. An embedding table of its own is not among them: a step reads a few rows."""
        return self.value_bytes * (self.layer_params + self.output_params)

    @property
    def memory_bytes(self) -> int:
        """Weights that must be stored."""
        return self.memory_bytes_on(1)

    def memory_bytes_on(self, num_gpus: int) -> int:
        """Weights that each of `num_gpus` must store, as the engine does: its share of the layers and of the output
        projection, and the whole embedding, whose rows a tied output projection uses where they are.

        Worked example: hidden 8, MLP 16, vocabulary 10, 960 weights in the layers, on 2 GPUs: 480 + 80, and 40 if the
        output projection has weights of its own; 2 bytes each.
        """
        output_params = 0 if self.tie_word_embeddings else self.hidden_size * -(-self.vocab_size // num_gpus)
        embed_params = self.vocab_size * self.hidden_size
        return self.value_bytes * (-(-self.layer_params // num_gpus) + embed_params + output_params)

    @property
    def kv_bytes_per_token(self) -> int:
        per_value, per_scale = self.kv_value_bytes, self.kv_scale_bytes
        return kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, per_value, per_scale)


MODELS = {
    "smollm2-135m": ModelShape(
        "SmolLM2-135M", 576, 1536, 30, 9, 3, 64, 49152, True, "config.json of HuggingFaceTB/SmolLM2-135M-Instruct"
    ),
    "llama-3-8b": ModelShape(
        "Llama-3-8B",
        4096,
        14336,
        32,
        32,
        8,
        128,
        128256,
        False,
        "arXiv:2407.21783, table 3; vocabulary of config.json",
    ),
    "llama-3-70b": ModelShape(
        "Llama-3-70B",
        8192,
        28672,
        80,
        64,
        8,
        128,
        128256,
        False,
        "arXiv:2407.21783, table 3; vocabulary of config.json",
    ),
}


def model_shape(name: str) -> ModelShape:
    """A model of `MODELS`, or what a folder's or hub id's config.json says.

    Raises:
        ConfigError: No such model.
    """
    if name in MODELS:
        return MODELS[name]
    from twophase.model.config import load_config
    from twophase.model.prepare import resolve_model

    try:
        config = load_config(resolve_model(name))
    except ModelFolderError as error:
        raise ConfigError(f"the model shapes known by name are {', '.join(MODELS)}; {error}") from error
    if config.is_mixed:
        raise ConfigError(
            f"{name} has layers that see all keys and layers that see a window, and this arithmetic knows one kind of "
            f"layer: a token takes blocks for as long as its layers see it, which differs. Choose another model."
        )
    return ModelShape(
        name,
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.tie_word_embeddings,
        "its config.json",
        max_position_embeddings=config.max_position_embeddings,
    )
