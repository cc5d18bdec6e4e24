"""A model's weights: from safetensors files into frozen records of tensors, laid out for speed.

q, k and v are one matrix, gate and up another, because one large product is faster than several small ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.doors import feature
from twophase.model.config import ModelConfig
from twophase.model.linear import Linear, make_linear
from twophase.model.tensor_files import EMBED, HEAD, StoredTensor, TensorFiles, has_safetensors

ALL_EXPERTS = slice(None)

# Given the name and the whole of a linear layer's tensor, the part of it that this process keeps, of the same type.
Cut = Callable[[str, Any], Any]


class LinearShape(NamedTuple):
    """Weights [rows, columns] = [O, I], and perhaps a bias [O]."""

    rows: int
    columns: int
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """The MLP of every token: `gate_up` N -> 2 I, gate, then up; `down` I -> N. N hidden, I intermediate."""

    gate_up: Linear
    down: Linear
    can_be_captured: ClassVar[bool] = True  # by a CUDA graph: the host decides nothing in between

    @staticmethod
    def shapes(config: ModelConfig, layer: int) -> Mapping[str, LinearShape]:
        """The linear layers that a folder holds for it."""
        n, i, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        up, down = LinearShape(i, n, has_bias), LinearShape(n, i, has_bias)
        return {"mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down}

    @staticmethod
    def load(loader: "WeightLoader", config: ModelConfig, layer: int, experts: slice) -> "DenseMLP":
        mlp = f"model.layers.{layer}.mlp."
        return DenseMLP(loader.linear(f"{mlp}gate_proj", f"{mlp}up_proj"), loader.linear(f"{mlp}down_proj"))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. N hidden, H and H_kv heads of size D.

    Attributes:
        qkv: N -> (H + 2 H_kv) D: queries, then keys, then values.
        o: H D -> N.
        mlp: `DenseMLP`, or experts (twophase_features.experts.weights.SparseMLP).
        input_norm, post_attention_norm: RMSNorm gains before attention and before the MLP.
        q_norm, k_norm: Gains per head (Qwen3), else None.
        attention_output_norm, mlp_output_norm: Gains after attention and MLP (Gemma), else None.
    """

    qkv: Linear
    o: Linear
    mlp: Any
    input_norm: Float[Tensor, "N"]
    post_attention_norm: Float[Tensor, "N"]
    q_norm: Float[Tensor, "D"] | None = None
    k_norm: Float[Tensor, "D"] | None = None
    attention_output_norm: Float[Tensor, "N"] | None = None
    mlp_output_norm: Float[Tensor, "N"] | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ModelWeights:
    """All weights of a model.

    Attributes:
        dtype: The dtype of activations and weights, except `embed` and gains with an offset, which are fp32.
        embed: Keeps the file's dtype if that is smaller: a step converts the rows that it reads, which is exact.
        lm_head: N -> V.
    """

    dtype: torch.dtype
    embed: Float[Tensor, "V N"]
    layers: tuple[LayerWeights, ...]
    final_norm: Float[Tensor, "N"]
    lm_head: Linear


_loaded: WeakValueDictionary[Any, ModelWeights] = WeakValueDictionary()


def one_copy(folder: Path, form: tuple[Any, ...], load: Callable[[], ModelWeights]) -> ModelWeights:
    """The weights that `load` makes of a folder in one `form`. Engines of a process share them, and change none."""
    stats = {file: file.stat() for file in folder.resolve().glob("*.[js]*") if file.is_file()}  # .json, .safetensors
    key = form, frozenset((file, stat.st_ino, stat.st_ctime_ns, stat.st_size) for file, stat in stats.items())
    return _loaded.get(key) or _loaded.setdefault(key, load())


class WeightLoader:
    """The door of a folder's weights: here floats, converted and copied into the memory of layers.

    twophase_features.quantization.loader reads or makes quantised weights. `files` has the stored tensors by name:
    `TensorFiles`, or a feature's files with `read` and `in`.
    """

    def __init__(self, files: Any, dtype: torch.dtype, device: torch.device, cut: Cut) -> None:
        self._files, self._cut = files, cut
        self.dtype, self.device = dtype, device

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A whole tensor; in the dtype of activations if `dtype` is None."""
        return self._files.read(name).to(self.device, dtype or self.dtype, copy=True)

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of a tensor as stored; float32 for a quantised one, which holds its values exactly."""
        stored: Tensor = self._files.read(name)
        return stored.dtype

    def linear(self, *names: str) -> Linear:
        """This process's part of several linear layers of the same input, as one layer."""
        return make_linear(self._stacked(*(f"{name}.weight" for name in names)), self.bias(*names))

    def head(self, name: str, embed: Float[Tensor, "V N"]) -> Linear:
        """The last linear layer; tied to the embedding, it shares the memory of `embed` where it can."""
        if name == EMBED and embed.dtype == self.dtype:  # a CPU needs another layout, a GPU shares the memory
            return make_linear(self._cut(EMBED, embed))
        return self.linear(name.removesuffix(".weight"))

    def bias(self, *names: str) -> Tensor | None:
        """The biases of several layers, concatenated; None for layers without biases."""
        stored = [f"{name}.bias" for name in names if f"{name}.bias" in self._files]
        return self._stacked(*stored) if stored else None

    def _stacked(self, *names: str) -> Tensor:
        """This process's parts of several tensors, one after the other along the first dimension."""
        parts = [self._cut(name, self._files.read(name)) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        stacked = torch.empty(shape, dtype=self.dtype, device=self.device)
        for target, part in zip(stacked.split([len(part) for part in parts]), parts, strict=True):
            target.copy_(part)  # converts and moves in one pass
        return stacked


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    cut: Cut = lambda name, tensor: tensor,
    experts: slice = ALL_EXPERTS,
    scheme: Any = None,
) -> ModelWeights:
    """Read every tensor the configuration calls for. Raises ModelFolderError if a file or tensor is missing, or is not
    as it should be; ConfigError if a layer's size is not a multiple of the scheme's groups.

    Args:
        cut: See `Cut`.
        experts: Which of each layer's experts to keep; nothing is read of the others.
        scheme: How linear layers are rounded (twophase_features.quantization.schemes.Scheme); None: not at all.
    """
    if scheme is None and not has_quantized_weights(folder, config):
        files = TensorFiles(folder)
        files.check({name: StoredTensor(shape) for name, shape in expected_shapes(config).items()})
        loader = WeightLoader(files, dtype, device, cut)
    else:
        loader = feature("quantization.loader").QuantizedLoader(folder, config, dtype, device, cut, scheme)
    embed = loader.tensor(EMBED, min(dtype, loader.dtype_of(EMBED), key=lambda each: each.itemsize))
    return ModelWeights(
        dtype=dtype,
        embed=embed,
        layers=tuple(_load_layer(loader, config, layer, experts) for layer in range(config.num_layers)),
        final_norm=_gain(loader, config, "model.norm"),
        lm_head=loader.head(EMBED if config.tie_word_embeddings else HEAD, embed),
    )


def has_quantized_weights(folder: Path, config: ModelConfig) -> bool:
    """Whether the folder stores linear layers in few bits. No weight is read."""
    return config.quantization is not None or (not has_safetensors(folder) and any(folder.glob("*.gguf")))


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a folder of this configuration must hold, no more and no fewer."""
    n, q_rows, kv_rows = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows_of = {"q": q_rows, "k": kv_rows, "v": kv_rows}
    attention = {f"self_attn.{each}_proj": LinearShape(rows, n, config.qkv_bias) for each, rows in rows_of.items()}
    attention["self_attn.o_proj"] = LinearShape(n, q_rows, config.o_bias)
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, n), "model.norm.weight": (n,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, n)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in _norms(config).values()}
        for name, (rows, columns, has_bias) in {**attention, **_mlp_kind(config).shapes(config, layer)}.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def _norms(config: ModelConfig) -> dict[str, tuple[str, int]]:
    """The norms that each layer has: the field of `LayerWeights`, the name in a folder, and the size."""
    n, d = config.hidden_size, config.head_dim
    norms = {"input_norm": ("input_layernorm", n), "post_attention_norm": ("post_attention_layernorm", n)}
    if config.has_output_norms:
        norms |= {
            "attention_output_norm": ("post_attention_layernorm", n),
            "post_attention_norm": ("pre_feedforward_layernorm", n),
            "mlp_output_norm": ("post_feedforward_layernorm", n),
        }
    if config.qk_norm:
        norms |= {"q_norm": ("self_attn.q_norm", d), "k_norm": ("self_attn.k_norm", d)}
    return norms


def _mlp_kind(config: ModelConfig) -> Any:
    """The class whose `shapes` and `load` make this model's MLPs; where layers have experts, it is the feature's."""
    return DenseMLP if config.experts is None else feature("experts.weights").SparseMLP


def _load_layer(loader: WeightLoader, config: ModelConfig, layer: int, experts: slice) -> LayerWeights:
    prefix = f"model.layers.{layer}."
    return LayerWeights(
        qkv=loader.linear(*(f"{prefix}self_attn.{each}_proj" for each in "qkv")),
        o=loader.linear(f"{prefix}self_attn.o_proj"),
        mlp=_mlp_kind(config).load(loader, config, layer, experts),
        **{field: _gain(loader, config, prefix + name) for field, (name, _) in _norms(config).items()},
    )


def _gain(loader: WeightLoader, config: ModelConfig, name: str) -> Tensor:
    if not config.norm_offset:
        return loader.tensor(f"{name}.weight")
    return loader.tensor(f"{name}.weight", torch.float32).add_(config.norm_offset)
