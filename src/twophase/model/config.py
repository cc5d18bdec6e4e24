"""What a model is: read strictly from its config.json, so that no feature is ignored in silence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase_features.quantization.checkpoint_config import CheckpointFormat, read_quantization_config

RopeType = Literal["default", "linear", "llama3"]
Activation = Literal["silu", "gelu_tanh"]

MAX_INT = 2**53  # no size of a model comes near
# Layers and experts are listed one by one before the weights are looked at: nonsense must not fill the memory first.
MAX_LAYERS, MAX_EXPERTS = 10_000, 2**16  # experts of all layers together; Qwen3-235B-A22B has 12,032
# Nonsense takes up to 25 times its size in memory, lists and objects most. The largest real files of this kind,
# tokenizer_config.json of Gemma 3 and the index of a large mixture, have 1.2 MB with 6,200 objects, and 4 MB with 2.
MAX_JSON_BYTES, MAX_JSON_CONTAINERS = 4 * 2**20, 100_000
LAYER_TYPES = ("full_attention", "sliding_attention")
# What transformers heeds in a config.json of any family, and no family here has.
UNSUPPORTED = (
    "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention", "per_layer_config",
    "transformers_weights", "attention_chunk_size", "kv_sharing_modes",
)  # fmt: skip
# What other mixtures of experts may ask for, and the values that mean nothing here.
NO_OTHER_MIXTURE: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("softmax",),
    "routed_scaling_factor": (1,),
    "n_group": (0, 1),
    "topk_group": (0, 1),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (RoPE, arXiv:2104.09864) and how it is stretched for longer contexts.

    Attributes:
        theta: Base of the geometric series of wavelengths.
        rope_type: 'default'; 'linear' divides every frequency by `factor` (arXiv:2306.15595);
            'llama3' divides only the low ones (see `rope.py`).
        factor: By how much; >= 1.
        low_freq_factor, high_freq_factor, original_max_position_embeddings: 'llama3' only.
    """

    theta: float
    rope_type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: in some layers the MLP is one of several, which a router chooses for each token.

    Attributes:
        num_experts: E, in each of these layers.
        num_experts_per_tok: K, those that a token goes through.
        intermediate_size: Of one expert.
        norm_topk_prob: Whether the probabilities of a token's K experts are divided by their sum.
        sparse_layers: The numbers of the layers that have experts; the others have one MLP.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the forward pass and the cache need to know about a model.

    Attributes:
        architecture: The Hugging Face class name it was written for.
        head_dim: D; num_heads * head_dim need not be hidden_size.
        max_position_embeddings: The longest context, in tokens.
        qkv_bias, o_bias, mlp_bias: Which linear layers add a bias.
        qk_norm: Queries and keys are RMS-normalised per head before RoPE (Qwen3).
        sliding_window: Keys a query sees, itself included; None: all.
        layer_types: Of each layer, if they differ: 'full_attention' sees all keys, 'sliding_attention' the window.
            Empty: all layers are of the same kind.
        local_rope: RoPE of the sliding layers where it is another than `rope`, which is then the full ones'.
        attention_scale: Factor on Q.K; None: 1 / sqrt(D).
        activation: Of the MLP's gate.
        norm_offset: Added to the gains of the norms: Gemma stores by how much they differ from 1.
        has_output_norms: What attention and MLP give is normalised too, before it is added to the residual (Gemma).
        embed_scale: Factor on the embeddings.
        experts: Of a mixture of experts; None: every layer has one MLP, of `intermediate_size`.
        quantization: How the folder stores the linear layers it has in few bits; None: it has none, or a GGUF file.
        dtype: What the weights were saved in, as torch names it; None if the file does not say.
        bos_token_id: Begin of text; None if there is none.
        eos_token_ids: Tokens that end a text; what generation_config.json says goes before config.json.
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
    activation: Activation = "silu"
    norm_offset: float = 0.0
    has_output_norms: bool = False
    embed_scale: float = 1.0
    experts: ExpertsConfig | None = None
    quantization: CheckpointFormat | None = None
    dtype: str | None = None
    bos_token_id: int | None = None
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


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture differs from plain Llama.

    Attributes:
        qkv_bias, o_bias: Fixed by the architecture; None: config.json's `attention_bias` decides.
        mlp_bias: Whether config.json's `mlp_bias` is read.
        model_type: What config.json must say beside the architecture; transformers reads a folder by it.
        window: Where a sliding window is configured: nowhere, in `sliding_window` if at all ('given'), behind
            `use_sliding_window`, behind that for all layers alike ('switched_for_all'), or in `sliding_window` for all
            layers but each sixth ('interleaved').
        is_gemma: Norms by 1 + gain, and after attention and MLP too, GELU, scaled embeddings and RoPE per kind of layer
            (Gemma 3, arXiv:2503.19786).
        defaults: What transformers takes where config.json does not say; where that is None, null is allowed too.
        experts: Whose keys say what the experts are; None: there are none.
    """

    model_type: str
    qkv_bias: bool | None = False
    o_bias: bool | None = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: Literal["none", "given", "switched", "switched_for_all", "interleaved"] = "none"
    is_gemma: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    experts: Literal["mixtral", "qwen3_moe"] | None = None


DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 10_000.0,
}
LLAMA_DEFAULTS = {"num_key_value_heads": None, "head_dim": None, "mlp_bias": False}
WINDOW_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
GEMMA3_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
MIXTRAL_DEFAULTS = {"head_dim": None, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
QWEN3_DEFAULTS = WINDOW_DEFAULTS | {"head_dim": 128}
QWEN3_MOE_DEFAULTS = WINDOW_DEFAULTS | {"max_window_layers": 0, "decoder_sparse_step": 1, "norm_topk_prob": False}

FAMILIES = {
    "LlamaForCausalLM": Family("llama", None, None, mlp_bias=True, defaults=LLAMA_DEFAULTS),  # SmolLM2 too
    "MistralForCausalLM": Family("mistral", window="given", defaults={"head_dim": None, "sliding_window": 4096}),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, window="switched", defaults=WINDOW_DEFAULTS),
    "Qwen3ForCausalLM": Family("qwen3", None, None, qk_norm=True, window="switched", defaults=QWEN3_DEFAULTS),
    "Gemma3ForCausalLM": Family(
        "gemma3_text", None, None, qk_norm=True, window="interleaved", is_gemma=True, defaults=GEMMA3_DEFAULTS
    ),
    "MixtralForCausalLM": Family("mixtral", window="given", experts="mixtral", defaults=MIXTRAL_DEFAULTS),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        None,
        None,
        qk_norm=True,
        window="switched_for_all",
        experts="qwen3_moe",
        defaults=QWEN3_MOE_DEFAULTS,
    ),
}


def load_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json (and the end-of-text ids of generation_config.json).

    Raises:
        ModelFolderError: No such folder or file, broken JSON, a missing or nonsensical value, or a feature that the
            forward pass does not have; names the file, what was found and what is supported.
    """
    file = _ConfigFile(_config_path(folder))
    architecture = _architecture(file)
    family = FAMILIES[architecture]
    file.defaults = {**DEFAULTS, **family.defaults}
    file.values = {**file.defaults, **file.values}
    _refuse_unsupported(file, family)
    num_heads = file.positive_int("num_attention_heads")
    hidden_size = file.positive_int("hidden_size")
    attention_bias = file.flag("attention_bias")
    layer_types = _layer_types(file, family)
    rope, local_rope = _ropes(file, family, layer_types)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=file.positive_int("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=file.positive_int("intermediate_size"),
        num_layers=file.num_layers(),
        num_heads=num_heads,
        num_kv_heads=file.positive_int("num_key_value_heads", if_null=num_heads),
        head_dim=_head_dim(file, hidden_size, num_heads),
        rms_norm_eps=file.positive_number("rms_norm_eps"),
        rope=rope,
        max_position_embeddings=file.positive_int("max_position_embeddings"),
        tie_word_embeddings=file.flag("tie_word_embeddings"),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.o_bias is None else family.o_bias,
        mlp_bias=family.mlp_bias and file.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(file, layer_types),
        layer_types=layer_types if len(set(layer_types)) > 1 else (),
        local_rope=local_rope,
        attention_scale=file.positive_int("query_pre_attn_scalar") ** -0.5 if family.is_gemma else None,
        activation="gelu_tanh" if family.is_gemma else "silu",
        norm_offset=1.0 if family.is_gemma else 0.0,
        has_output_norms=family.is_gemma,
        embed_scale=hidden_size**0.5 if family.is_gemma else 1.0,
        experts=_experts(file, family),
        quantization=_quantization(file),
        dtype=_dtype(file),
        bos_token_id=None if file.values.get("bos_token_id") is None else file.whole_number("bos_token_id"),
        eos_token_ids=_eos_token_ids(folder, file),
    )
    _check_heads(file, config)
    return config


class _ConfigFile:
    """A JSON object on disk, read key by key; every complaint names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_json_object(path)
        self.defaults: Mapping[str, Any] = {}

    def error(self, problem: str) -> ModelFolderError:
        return ModelFolderError(f"{self.path}: {problem}")

    def positive_int(self, key: str, if_null: int | None = None) -> int:
        return self.whole_number(key, if_null, at_least=1)

    def num_layers(self) -> int:
        number = self.positive_int("num_hidden_layers")
        if number > MAX_LAYERS:
            raise self.error(f"'num_hidden_layers' must be at most {MAX_LAYERS:,}, found {number:,}.")
        return number

    def whole_number(self, key: str, if_null: int | None = None, at_least: int = 0) -> int:
        value = self._value(key, if_null)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= MAX_INT:
            raise self.error(f"{key!r} must be a whole number >= {at_least}, found {shown(value)}.")
        return value

    def positive_number(self, key: str) -> float:
        return self.check_positive(key, self._value(key))

    def check_positive(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_INT:
            raise self.error(f"{key!r} must be a positive number, found {shown(value)}.")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.error(f"{key!r} must be true or false, found {shown(value)}.")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in ids):
            raise self.error(f"{key!r} must be a token id or a list of them, found {shown(value)}.")
        return ids

    def _value(self, key: str, if_null: Any = None) -> Any:
        """What the file or its family's default says; `if_null` where that is null, and may be."""
        value = self.values.get(key)
        if value is None and self.defaults.get(key, 0) is None:
            value = if_null
        if value is None:
            how = "null" if key in self.values else "missing"
            raise self.error(f"{key!r} is {how}. Download the model again, or take config.json from its source.")
        return value


def read_json_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON file that must hold an object.

    Raises:
        ModelFolderError: It cannot be read, is too large, is not JSON, or holds something else.
    """
    try:
        values = json.loads(read_bounded(path, max_bytes).decode())
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path} is not valid JSON ({error}). Download it again.") from error
    if not isinstance(values, dict):
        raise ModelFolderError(f"{path} must hold a JSON object, found {type(values).__name__}. Download it again.")
    return values


def read_bounded(path: Path, max_bytes: int = MAX_JSON_BYTES, max_containers: int = MAX_JSON_CONTAINERS) -> bytes:
    """A whole file of at most so many bytes, and so many lists and objects if it is JSON.

    Raises:
        ModelFolderError: It cannot be read, or has more.
    """
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > max_bytes:
        raise ModelFolderError(f"{path} is larger than {max_bytes:,} bytes, which no model needs. Download it again.")
    if content.count(b"[") + content.count(b"{") > max_containers:
        raise ModelFolderError(f"{path} holds more than {max_containers:,} lists and objects. Download it again.")
    return content


def _config_path(folder: Path) -> Path:
    if not folder.is_dir():
        raise ModelFolderError(f"{folder} is not a folder. Give a Hugging Face model folder, with config.json in it.")
    path = folder / "config.json"
    if not path.is_file():
        hint = ""
        if any(folder.glob("*.gguf")):
            hint = " Beside a GGUF file it needs config.json and the tokenizer's files of the original model."
        raise ModelFolderError(f"{path} is missing: {folder} is not a Hugging Face model folder.{hint}")
    return path


def _architecture(file: _ConfigFile) -> str:
    found, model_type = file.values.get("architectures"), file.values.get("model_type")
    if not isinstance(found, list) or len(found) != 1 or found[0] not in list(FAMILIES):
        raise file.error(
            f"architectures {shown(found)} (model_type {shown(model_type)}) is not supported. "
            f"Supported: {', '.join(FAMILIES)} (SmolLM2 is a LlamaForCausalLM). Choose a model of one of these."
        )
    if model_type != FAMILIES[found[0]].model_type:  # transformers goes by the model_type alone
        raise file.error(
            f"model_type {shown(model_type)} does not go with architectures {found}, whose model_type is "
            f"{FAMILIES[found[0]].model_type!r}. Correct the one that is wrong, or download the model again."
        )
    return str(found[0])


def _refuse_unsupported(file: _ConfigFile, family: Family) -> None:
    values = file.values
    key, names = ("hidden_activation", ("gelu_pytorch_tanh",)) if family.is_gemma else ("hidden_act", ("silu", "swish"))
    if values[key] not in names:
        raise file.error(f"{key} {shown(values[key])} is not supported; supported: {names[0]!r}.")
    for key in UNSUPPORTED + (("sliding_window",) if family.window == "none" else ()):
        if values.get(key) is not None and values[key] is not False:
            raise file.error(f"{key} {shown(values[key])} is not supported, only models without it.")


def _quantization(file: _ConfigFile) -> CheckpointFormat | None:
    values = file.values.get("quantization_config") or file.values.get("compression_config")
    if values is None:
        return None
    try:
        return read_quantization_config(values)
    except ValueError as error:
        raise file.error(f"{error}. Use the unquantised model.") from error


def _head_dim(file: _ConfigFile, hidden_size: int, num_heads: int) -> int:
    if file.values.get("head_dim") is None and hidden_size % num_heads:
        raise file.error(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}.")
    width = hidden_size // num_heads
    return file.positive_int("head_dim", if_null=width) if "head_dim" in file.values else width


def _check_heads(file: _ConfigFile, config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise file.error(
            f"num_attention_heads {config.num_heads} is not a multiple of num_key_value_heads {config.num_kv_heads}."
        )
    if config.head_dim % 2:
        raise file.error(f"head_dim must be even, because RoPE rotates pairs; found {config.head_dim}.")


def _ropes(file: _ConfigFile, family: Family, layer_types: tuple[str, ...]) -> tuple[RopeConfig, RopeConfig | None]:
    """RoPE of the layers that see all keys, and of the others where it differs.

    Older files have `rope_theta` and `rope_scaling` (with `type` or `rope_type`), newer ones `rope_parameters`. Gemma 3
    has two bases: in older files that of sliding layers is `rope_local_base_freq`, and their positions are not scaled;
    in newer ones `rope_parameters` has an entry for each type of layer.
    """
    scaling, parameters = file.values.get("rope_scaling"), file.values.get("rope_parameters")
    if not family.is_gemma:
        either = scaling or parameters
        return _rope(file, {} if either is None else either, "rope_theta"), None
    if scaling and parameters is None and "rope_type" not in scaling:
        raise file.error(f"rope_scaling must say its 'rope_type', found {shown(scaling)}.")
    if parameters is None:
        parameters = {"full_attention": scaling or {}, "sliding_attention": {}}
    elif scaling is not None:
        raise file.error("rope_scaling beside rope_parameters is not supported: they are two forms of one thing.")
    if not isinstance(parameters, dict) or not set(parameters) <= set(LAYER_TYPES):
        raise file.error(
            f"rope_parameters must have RoPE parameters for {', '.join(LAYER_TYPES)}; found {shown(parameters)}."
        )
    full, local = (
        _rope(file, parameters.get(kind) or {}, base)
        for kind, base in zip(LAYER_TYPES, ("rope_theta", "rope_local_base_freq"), strict=True)
    )
    if len(set(layer_types)) == 1:
        return (full if layer_types[0] == "full_attention" else local), None
    return full, local


def _rope(file: _ConfigFile, parameters: Any, base: str) -> RopeConfig:
    """One set of parameters; `base` is where the file has theta if they do not."""
    if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
        raise file.error(f"one set of RoPE parameters for all layers is supported, found {shown(parameters)}.")
    if parameters.get("partial_rotary_factor", file.values.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise file.error("partial_rotary_factor other than 1 is not supported: RoPE rotates whole heads.")
    theta = file.check_positive(base, parameters.get("rope_theta", file.values[base]))
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta)
    if rope_type not in ("linear", "llama3"):
        raise file.error(
            f"RoPE type {shown(rope_type)} is not supported; supported: 'default', 'linear', 'llama3'. "
            "Removing the scaling from the file limits the model to the context it was first trained for."
        )

    def number(key: str) -> float:
        return file.check_positive(f"rope {key}", parameters.get(key))

    if rope_type == "linear":
        return RopeConfig(theta, "linear", number("factor"))
    low, high = number("low_freq_factor"), number("high_freq_factor")
    if low >= high:
        raise file.error(f"rope low_freq_factor {low} must be below high_freq_factor {high}.")
    original = parameters.get("original_max_position_embeddings", file.values.get("max_position_embeddings"))
    if not isinstance(original, int):
        raise file.error(f"rope original_max_position_embeddings must be a whole number, found {shown(original)}.")
    original_length = int(file.check_positive("rope original_max_position_embeddings", original))
    return RopeConfig(theta, "llama3", number("factor"), low, high, original_length)


def _layer_types(file: _ConfigFile, family: Family) -> tuple[str, ...]:
    """The kind of attention of each layer."""
    num_layers = file.num_layers()
    full, sliding = LAYER_TYPES
    given = file.values.get("layer_types")
    if given is not None and not (
        isinstance(given, list) and len(given) == num_layers and all(kind in LAYER_TYPES for kind in given)
    ):
        raise file.error(
            f"layer_types must be {num_layers} times one of {', '.join(LAYER_TYPES)}; found {_summary(given)}."
        )
    if family.window.startswith("switched"):
        file.whole_number("max_window_layers")
    if file.values.get("sliding_window") is not None:
        file.positive_int("sliding_window")
    if family.window == "none" or (family.window.startswith("switched") and not file.flag("use_sliding_window")):
        if sliding in (given or ()):
            raise file.error("layer_types has sliding_attention, but the model has no sliding window.")
        return (full,) * num_layers
    if family.window == "given":
        return (full if file.values.get("sliding_window") is None else sliding,) * num_layers
    if family.window == "switched_for_all":
        _check_all_layers_alike(file)
        return (sliding,) * num_layers
    if family.window == "switched":
        num_full = file.whole_number("max_window_layers")  # the first layers, which see everything
        default = [full if layer < num_full else sliding for layer in range(num_layers)]
    else:
        pattern = file.positive_int("sliding_window_pattern")  # the last of so many layers sees everything
        default = [sliding if (layer + 1) % pattern else full for layer in range(num_layers)]
    return tuple(default if given is None else given)


def _sliding_window(file: _ConfigFile, layer_types: tuple[str, ...]) -> int | None:
    return file.positive_int("sliding_window") if "sliding_attention" in layer_types else None


def _check_all_layers_alike(file: _ConfigFile) -> None:
    """transformers gives every layer of this family the window, and did not always: so no key may say otherwise."""
    if file.whole_number("max_window_layers") or file.values.get("layer_types") is not None:
        raise file.error(
            "a sliding window is supported for all layers of this architecture or for none, so with use_sliding_window "
            "max_window_layers must be 0 and layer_types absent."
        )


def _experts(file: _ConfigFile, family: Family) -> ExpertsConfig | None:
    if family.experts is None:
        return None
    num_layers = file.num_layers()
    if family.experts == "mixtral":
        intermediate_size, norm_topk_prob = file.positive_int("intermediate_size"), True
        sparse_layers = tuple(range(num_layers))
    else:
        intermediate_size, norm_topk_prob = file.positive_int("moe_intermediate_size"), file.flag("norm_topk_prob")
        sparse_layers = _sparse_layers(file, num_layers)
    num_experts, num_experts_per_tok = _num_experts(file), file.positive_int("num_experts_per_tok")
    if num_experts_per_tok > num_experts:
        raise file.error(f"num_experts_per_tok {num_experts_per_tok} is more than the {num_experts} experts there are.")
    for key, harmless in NO_OTHER_MIXTURE.items():
        if file.values.get(key) not in (None, *harmless):
            raise file.error(
                f"{key} {shown(file.values[key])} is not supported: a router's softmax over all experts chooses a "
                f"token's, there is one group of them, and none is shared by all tokens."
            )
    if not sparse_layers:
        return None
    return ExpertsConfig(num_experts, num_experts_per_tok, intermediate_size, norm_topk_prob, sparse_layers)


def _num_experts(file: _ConfigFile) -> int:
    """Under the name of the hub's files or under that of transformers 5, which may stand side by side."""
    names = [key for key in ("num_experts", "num_local_experts") if file.values.get(key) is not None]
    counts = {file.positive_int(key) for key in names or ["num_experts"]}
    if len(counts) > 1:
        raise file.error("num_experts and num_local_experts are two names of one number; found two numbers.")
    count, num_layers = counts.pop(), file.num_layers()
    if count * num_layers > MAX_EXPERTS:
        raise file.error(
            f"the number of experts must be at most {MAX_EXPERTS:,} in all layers together, found {count:,} in each of "
            f"{num_layers:,} layers."
        )
    return count


def _sparse_layers(file: _ConfigFile, num_layers: int) -> tuple[int, ...]:
    """Every `decoder_sparse_step`-th layer, but for those in `mlp_only_layers`."""
    step, dense = file.positive_int("decoder_sparse_step"), file.values.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise file.error(f"'mlp_only_layers' must be a list of layers' numbers, found {shown(dense)}.")
    never = set(dense)
    return tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in never)


def _summary(values: Any) -> str:
    """The different values of a list, and how many it has."""
    different = list(dict.fromkeys(map(shown, values))) if isinstance(values, list) else [shown(values)]
    return f"{len(values) if isinstance(values, list) else 1} of {', '.join(different)}"[:200]


def _dtype(file: _ConfigFile) -> str | None:
    value = file.values.get("dtype")
    value = file.values.get("torch_dtype") if value is None else value
    if value not in (None, "float32", "float16", "bfloat16"):
        raise file.error(f"dtype {shown(value)} is not supported; supported: float32, float16, bfloat16.")
    return value


def _eos_token_ids(folder: Path, file: _ConfigFile) -> frozenset[int]:
    """What ends a text, as in transformers: generation_config.json alone says it, config.json where that is absent."""
    path, ids = folder / "generation_config.json", file.token_ids("eos_token_id")
    return frozenset(_ConfigFile(path).token_ids("eos_token_id") if path.exists() else ids)
