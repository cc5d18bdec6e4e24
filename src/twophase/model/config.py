"""A model's configuration, read strictly from its config.json, so that no feature is ignored in silence. Plain Llama is
here; other families and features read their own part of the file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from twophase.core.errors import ModelFolderError
from twophase.core.rules import Rule, read_int, shown, whole_number
from twophase.doors import feature
from twophase.model.json_file import COUNT, POSITIVE_NUMBER, Fields, JsonFile, KeyRule

# Layers are listed before the weights are read: a nonsensical number must not fill the memory.
_NUM_LAYERS = whole_number(at_least=1, at_most=10_000)
_TOKEN_IDS = Rule(
    "a token id or a list of them",
    lambda value: [] if value is None else list(map(read_int, value if isinstance(value, list) else [value])),
    lambda ids: min(ids, default=0) >= 0,
)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (RoPE, arXiv:2104.09864).

    Attributes:
        theta: Base of the geometric series of wavelengths.
        scaling: Scales the frequencies for longer contexts (twophase_features.rope_scaling); None: unscaled.
    """

    theta: float
    scaling: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a model for the forward pass and the cache.

    Attributes:
        architecture: The name of the Hugging Face class that computes the model.
        head_dim: D; num_heads * head_dim need not be hidden_size.
        max_position_embeddings: The longest context, in tokens.
        qkv_bias, o_bias, mlp_bias: Which linear layers add a bias.
        qk_norm: Queries and keys are RMS-normalised per head before RoPE (Qwen3).
        sliding_window: Keys a query sees, itself included; None: all.
        layer_types: The kind of each layer, if kinds differ: 'full_attention' sees all keys, 'sliding_attention' the
            window. Empty: all layers are of the same kind.
        local_rope: RoPE of the sliding layers, if it differs from `rope`, the full layers' RoPE.
        attention_scale: Factor on Q.K; None: 1 / sqrt(D).
        activation: The activation function of the MLP's gate.
        norm_offset: Added to the gains of the norms: Gemma stores gain - 1.
        has_output_norms: The outputs of attention and MLP are normalised before they are added to the residual (Gemma).
        embed_scale: Factor on the embeddings.
        experts: The mixture of experts (twophase_features.experts.config.ExpertsConfig); None: every layer has one MLP.
        quantization: How the folder stores linear layers in few bits
            (twophase_features.quantization.checkpoint_config.CheckpointFormat); None: plain weights, or a GGUF file.
        dtype: The dtype of the saved weights, as torch names it; None if the file does not say.
        eos_token_ids: The end-of-text ids.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    local_rope: RopeConfig | None = None
    attention_scale: float | None = None
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0
    has_output_norms: bool = False
    embed_scale: float = 1.0
    experts: Any = None
    quantization: Any = None
    dtype: str | None = None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def is_mixed(self) -> bool:
        """Whether some layers see all keys and others a window of them."""
        return bool(self.layer_types)

    @property
    def sees_all(self) -> tuple[bool, ...]:
        """For each layer, whether its queries see all keys."""
        types = self.layer_types or ("full_attention" if self.sliding_window is None else "sliding_attention",)
        return tuple(kind == "full_attention" for kind in types * (self.num_layers // len(types)))


WITHOUT = "is not supported, only models without it."
# Keys that transformers reads in a config.json of any family, and that no family here supports.
UNSUPPORTED = (
    "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention", "per_layer_config",
    "transformers_weights", "attention_chunk_size", "kv_sharing_modes",
)  # fmt: skip
SILU = KeyRule("hidden_act", ("silu", "swish"), "is not supported; supported: 'silu'.")
RULES = (
    KeyRule("dtype", (None, "float32", "float16", "bfloat16"), "is not supported, only float32, float16, bfloat16."),
    *(KeyRule(key, (None, False), WITHOUT) for key in UNSUPPORTED),
)


@dataclass(frozen=True, slots=True)
class Family:
    """How the config.json of one architecture is read: the door by which features add families of models.

    Attributes:
        model_type: The model_type that config.json must have; transformers chooses its classes by it.
        reads: Readers of further parts of the file: each returns fields of `ModelConfig`, by name.
        fields: Fields of `ModelConfig` that the architecture fixes.
        defaults: transformers' defaults for absent keys; a key whose default is None may be null.
        rules: Values that the file must have.
    """

    model_type: str
    reads: tuple[Callable[[JsonFile], Fields], ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[KeyRule, ...] = (SILU,)


def read_rope(file: JsonFile) -> Fields:
    """Older files have `rope_theta` and `rope_scaling` (with `type` or `rope_type`), newer ones `rope_parameters`."""
    either = file.values.get("rope_scaling") or file.values.get("rope_parameters")
    return {"rope": rope_of(file, {} if either is None else either, "rope_theta")}


def rope_of(file: JsonFile, parameters: Any, base: str) -> RopeConfig:
    """One set of RoPE parameters; `base` is the key of the file that has theta if they do not."""
    if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
        raise file.error(f"one set of RoPE parameters for all layers is supported, found {shown(parameters)}.")
    if parameters.get("partial_rotary_factor", file.values.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise file.error("partial_rotary_factor other than 1 is not supported: RoPE rotates whole heads.")
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    scaling = None if rope_type == "default" else feature("rope_scaling").scaling_of(file, rope_type, parameters)
    return RopeConfig(file.checked(base, parameters.get("rope_theta", file.values[base]), POSITIVE_NUMBER), scaling)


def read_attention_bias(file: JsonFile) -> Fields:
    has_bias = file.flag("attention_bias")
    return {"qkv_bias": has_bias, "o_bias": has_bias}


def _read_llama(file: JsonFile) -> Fields:
    layers = num_layers_of(file)
    if file.values.get("layer_types") not in (None, ["full_attention"] * layers):
        raise file.error(f"layer_types must be {layers} times 'full_attention', or absent.")
    return {"mlp_bias": file.flag("mlp_bias")}


DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 10_000.0,
}
FAMILIES = {
    "LlamaForCausalLM": Family(  # SmolLM2 too
        "llama",
        (read_rope, read_attention_bias, _read_llama),
        defaults={"num_key_value_heads": None, "head_dim": None, "mlp_bias": False},
        rules=(SILU, KeyRule("sliding_window", (None,), WITHOUT)),
    ),
}
# Families that a feature reads: its module has `FAMILIES` too.
FAMILIES_OF_FEATURES = {
    "MistralForCausalLM": "families",
    "Qwen2ForCausalLM": "families",
    "Qwen3ForCausalLM": "families",
    "Gemma3ForCausalLM": "gemma3",
    "MixtralForCausalLM": "experts.config",
    "Qwen3MoeForCausalLM": "experts.config",
}
ARCHITECTURES = (*FAMILIES, *FAMILIES_OF_FEATURES)


def load_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json (and the end-of-text ids of generation_config.json). Raises ModelFolderError for a
    missing or broken file, a missing or nonsensical value, or an unsupported feature."""
    file = _config_file(folder)
    architecture = _architecture(file)
    family = family_of(architecture)
    file.set_defaults({**DEFAULTS, **family.defaults})
    if file.values.get("dtype") is None:
        file.values["dtype"] = file.values.get("torch_dtype")  # its name in older files
    file.check(RULES + family.rules)
    fields = {**family.fields, **_read_heads(file)}
    for read in family.reads:
        fields |= read(file)
    if file.values.get("quantization_config") or file.values.get("compression_config"):
        fields |= feature("quantization.checkpoint_config").read(file)
    return ModelConfig(
        architecture=architecture,
        vocab_size=file.positive_int("vocab_size"),
        intermediate_size=file.positive_int("intermediate_size"),
        num_layers=num_layers_of(file),
        rms_norm_eps=file.read("rms_norm_eps", POSITIVE_NUMBER),
        max_position_embeddings=file.positive_int("max_position_embeddings"),
        tie_word_embeddings=file.flag("tie_word_embeddings"),
        dtype=file.values["dtype"],
        eos_token_ids=_eos_token_ids(file, folder),
        **fields,
    )


def _config_file(folder: Path) -> JsonFile:
    path = folder / "config.json"
    if not path.is_file():
        problem = f"{path} is missing" if folder.is_dir() else f"{folder} is not a folder"
        raise ModelFolderError(
            f"{problem}. Give a Hugging Face model folder, with config.json in it. A GGUF file needs config.json and "
            "the tokenizer's files of the original model beside it."
        )
    return JsonFile(path)


def _eos_token_ids(config: JsonFile, folder: Path) -> frozenset[int]:
    """The end-of-text ids of generation_config.json where there is one, as in transformers, which reads all ids."""
    if config.values.get("bos_token_id") is not None:
        config.read("bos_token_id", COUNT)
    generation = folder / "generation_config.json"
    files = [config, JsonFile(generation)] if generation.exists() else [config]
    return frozenset([file.checked("eos_token_id", file.values.get("eos_token_id"), _TOKEN_IDS) for file in files][-1])


def _read_heads(file: JsonFile) -> Fields:
    hidden_size, num_heads = file.positive_int("hidden_size"), file.positive_int("num_attention_heads")
    width, rest = divmod(hidden_size, num_heads)
    file.refuse_if(
        rest and file.values.get("head_dim") is None,
        f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}.",
    )
    file.values.setdefault("head_dim", width)
    num_kv_heads, head_dim = file.positive_int("num_key_value_heads", num_heads), file.positive_int("head_dim", width)
    file.refuse_if(
        num_heads % num_kv_heads,
        f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}.",
    )
    file.refuse_if(head_dim % 2, f"head_dim must be even, because RoPE rotates pairs; found {head_dim}.")
    return {"hidden_size": hidden_size, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}


def family_of(architecture: str) -> Family:
    """How a supported architecture is read: by this module or by the module of its feature."""
    if architecture in FAMILIES:
        return FAMILIES[architecture]
    family: Family = feature(FAMILIES_OF_FEATURES[architecture]).FAMILIES[architecture]
    return family


def num_layers_of(file: JsonFile) -> int:
    return int(file.read("num_hidden_layers", _NUM_LAYERS))


def _architecture(file: JsonFile) -> str:
    found, model_type = file.values.get("architectures"), file.values.get("model_type")
    if not isinstance(found, list) or len(found) != 1 or found[0] not in ARCHITECTURES:
        raise file.error(
            f"architectures {shown(found)} (model_type {shown(model_type)}) is not supported. "
            f"Supported: {', '.join(ARCHITECTURES)} (SmolLM2 is a LlamaForCausalLM). Choose a model of one of these."
        )
    expected = family_of(found[0]).model_type
    file.refuse_if(
        model_type != expected,  # transformers uses the model_type alone
        f"model_type {shown(model_type)} contradicts architectures {found}, whose model_type is {expected!r}. "
        "Correct the wrong field, or download the model again.",
    )
    return str(found[0])
