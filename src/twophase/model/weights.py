"""A model's weights: from safetensors files into frozen records of tensors, fused and laid out for speed.

Fused: q, k and v are one matrix, gate and up another, because one large product is faster than several small ones.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase.memory import free_host_memory_bytes
from twophase.model.config import ModelConfig, read_json_object
from twophase.model.linear import GroupedLinear, Linear, LinearLayer, make_grouped_linear, make_linear
from twophase_features.experts import EXPERT_NAMES, SparseMLP, expert_shapes, is_sparse
from twophase_features.quantization.checkpoint_config import CheckpointFormat
from twophase_features.quantization.checkpoints import StoredTensor, is_quantized, read_weight, stored_tensors
from twophase_features.quantization.gguf_file import GGUFWeights, find_gguf
from twophase_features.quantization.linear import SideBySide, make_quantized_linear
from twophase_features.quantization.rounding import NotFiniteError, quantize
from twophase_features.quantization.schemes import Scheme, head_scheme
from twophase_features.quantization.weight import QuantizedWeight, can_stack, stack

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ALL_EXPERTS = slice(None)
# A tensor takes about 100 bytes in either, and large mixtures of experts have 37,000. safetensors itself reads 100 MB.
MAX_HEADER_BYTES, MAX_INDEX_BYTES = 8 * 2**20, 16 * 2**20
TENSOR_IN_HEADER = re.compile(rb'"([^"]*)"\s*:\s*\{[^{}]*"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d{1,18})\s*\]')
CURE = "Download the model again."
PLAIN_MEMORY_FRACTION = 0.25  # of a host's free memory, for a second, plain form of quantised weights

Stored = Tensor | QuantizedWeight
# Given the name and the whole of a linear layer's tensor, the part of it that this process keeps, of the same type.
Cut = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """The MLP of every token. N hidden, I intermediate.

    Attributes:
        gate_up: N -> 2 I: gate, then up.
        down: I -> N.
    """

    gate_up: LinearLayer
    down: LinearLayer


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. N hidden, H and H_kv heads of size D.

    Attributes:
        input_norm, post_attention_norm: [N], RMSNorm gains before attention and before the MLP.
        attention_output_norm, mlp_output_norm: [N], gains after them (Gemma), else None.
        qkv: N -> (H + 2 H_kv) D: queries, then keys, then values.
        q_norm, k_norm: [D], gains per head (Qwen3), else None.
        o: H D -> N.
        mlp: One MLP, or experts.
    """

    input_norm: Float[Tensor, "N"]
    qkv: LinearLayer
    q_norm: Float[Tensor, "D"] | None
    k_norm: Float[Tensor, "D"] | None
    o: LinearLayer
    post_attention_norm: Float[Tensor, "N"]
    mlp: DenseMLP | SparseMLP
    attention_output_norm: Float[Tensor, "N"] | None = None
    mlp_output_norm: Float[Tensor, "N"] | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a model.

    Attributes:
        dtype: Of activations and of every weight but `embed`, and gains with an offset: these are in fp32.
        embed: [V, N]. Keeps the file's dtype where that is the smaller one: only the rows of a step's tokens are read,
            and widening them then is as exact as widening them all before.
        layers: In order.
        final_norm: [N].
        lm_head: N -> V.
    """

    dtype: torch.dtype
    embed: Float[Tensor, "V N"]
    layers: tuple[LayerWeights, ...]
    final_norm: Float[Tensor, "N"]
    lm_head: LinearLayer


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    cut: Cut = lambda name, tensor: tensor,
    experts: slice = ALL_EXPERTS,
    scheme: Scheme | None = None,
) -> ModelWeights:
    """Read every tensor the configuration calls for.

    Args:
        cut: Given the name and the whole of a linear layer's tensor, the part of it to keep.
        experts: Which of each layer's experts to keep; nothing is read of the others.
        scheme: How linear layers are rounded to fewer bits; None: they stay as the folder has them.

    Raises:
        ModelFolderError: A file is missing or truncated; a tensor is missing, unexpected, of another shape or of a
            dtype that is not a plain float. Names the file and the tensor.
        ConfigError: A layer's size is no multiple of the scheme's groups.
    """
    files = open_tensors(folder, config)
    loader = _Loader(files, dtype, device, cut, config.norm_offset, scheme)
    embed = loader.tensor(EMBED, min(dtype, files.dtype_of(EMBED), key=lambda each: each.itemsize))
    head = EMBED if config.tie_word_embeddings else HEAD
    if head == EMBED and embed.dtype == dtype and scheme is None and files.is_plain(EMBED):
        lm_head: LinearLayer = make_linear(
            cut(EMBED, embed)
        )  # the same memory, but where a CPU wants a layout of its own
    else:
        lm_head = loader.linear(head.removesuffix(".weight"))
    return ModelWeights(
        dtype=dtype,
        embed=embed,
        layers=tuple(_load_layer(loader, config, layer, experts) for layer in range(config.num_layers)),
        final_norm=loader.gain("model.norm"),
        lm_head=lm_head,
    )


@runtime_checkable
class Tensors(Protocol):
    """The tensors of a model folder, checked against the shapes that its configuration calls for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    def read(self, name: str) -> Stored: ...
    def is_plain(self, name: str) -> bool: ...
    def dtype_of(self, name: str) -> torch.dtype: ...


def open_tensors(folder: Path, config: ModelConfig) -> Tensors:
    """The folder's safetensors files, or the GGUF file in their place.

    Raises:
        ModelFolderError: As `load_weights`.
    """
    shapes = expected_shapes(config)
    gguf = None if _has_safetensors(folder) else find_gguf(folder)
    if gguf is None:
        return TensorFiles(folder, shapes, config.quantization)
    if config.norm_offset or config.experts is not None:
        raise ModelFolderError(f"{gguf}: {config.architecture} is not loaded from GGUF files. Use safetensors files.")
    return GGUFWeights(gguf, shapes)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a folder of this configuration must hold, no more and no fewer."""
    n, i = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_rows, n, config.qkv_bias),
        "self_attn.k_proj": (kv_rows, n, config.qkv_bias),
        "self_attn.v_proj": (kv_rows, n, config.qkv_bias),
        "self_attn.o_proj": (n, q_rows, config.o_bias),
    }
    mlp = {
        "mlp.gate_proj": (i, n, config.mlp_bias),
        "mlp.up_proj": (i, n, config.mlp_bias),
        "mlp.down_proj": (n, i, config.mlp_bias),
    }
    experts = {} if config.experts is None else {name: (*shape, False) for name, shape in expert_shapes(config).items()}
    norms = {"input_layernorm": n, "post_attention_layernorm": n}
    if config.has_output_norms:
        norms |= {"pre_feedforward_layernorm": n, "post_feedforward_layernorm": n}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, n), "model.norm.weight": (n,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, n)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (rows, columns, has_bias) in (linears | (experts if is_sparse(config, layer) else mlp)).items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def _load_layer(loader: "_Loader", config: ModelConfig, layer: int, experts: slice) -> LayerWeights:
    prefix = f"model.layers.{layer}."
    attention, has_outputs = f"{prefix}self_attn.", config.has_output_norms
    return LayerWeights(
        input_norm=loader.gain(f"{prefix}input_layernorm"),
        qkv=loader.linear(f"{attention}q_proj", f"{attention}k_proj", f"{attention}v_proj"),
        q_norm=loader.gain(f"{attention}q_norm") if config.qk_norm else None,
        k_norm=loader.gain(f"{attention}k_norm") if config.qk_norm else None,
        o=loader.linear(f"{attention}o_proj"),
        post_attention_norm=loader.gain(f"{prefix}{'pre_feedforward' if has_outputs else 'post_attention'}_layernorm"),
        mlp=_load_experts(loader, config, prefix, experts) if is_sparse(config, layer) else _load_mlp(loader, prefix),
        attention_output_norm=loader.gain(f"{prefix}post_attention_layernorm") if has_outputs else None,
        mlp_output_norm=loader.gain(f"{prefix}post_feedforward_layernorm") if has_outputs else None,
    )


def _load_mlp(loader: "_Loader", prefix: str) -> DenseMLP:
    mlp = f"{prefix}mlp."
    return DenseMLP(loader.linear(f"{mlp}gate_proj", f"{mlp}up_proj"), loader.linear(f"{mlp}down_proj"))


def _load_experts(loader: "_Loader", config: ModelConfig, prefix: str, experts: slice) -> SparseMLP:
    assert config.experts is not None
    names = EXPERT_NAMES[config.architecture]
    block = f"{prefix}{names.block}"
    kept = [f"{block}.experts.{expert}." for expert in range(config.experts.num_experts)[experts]]
    return SparseMLP(
        router=loader.router(f"{block}.gate"),
        gate_up=loader.grouped([(expert + names.gate, expert + names.up) for expert in kept]),
        down=loader.grouped([(expert + names.down,) for expert in kept]),
    )


class _Loader:
    """Copies tensors out of their files, converted. The files are mapped, so nothing is read twice or kept."""

    def __init__(
        self,
        files: Tensors,
        dtype: torch.dtype,
        device: torch.device,
        cut: Cut,
        norm_offset: float = 0.0,
        scheme: Scheme | None = None,
    ) -> None:
        self._files = files
        self._norm_offset = norm_offset
        self._cut = cut
        self._dtype = dtype
        self._device = device
        self._scheme = scheme
        in_plain = sum(math.prod(shape) for shape in files.shapes.values()) * dtype.itemsize
        self._keeps_plain = in_plain <= PLAIN_MEMORY_FRACTION * free_host_memory_bytes()

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        stored, dtype = self._files.read(name), dtype or self._dtype
        if isinstance(stored, QuantizedWeight):
            return stored.dequantize(dtype).to(self._device)
        return stored.to(self._device, dtype, copy=True)

    def gain(self, name: str) -> Tensor:
        """What a norm multiplies by."""
        if not self._norm_offset:
            return self.tensor(f"{name}.weight")
        return self.tensor(f"{name}.weight", torch.float32).add_(self._norm_offset)

    def linear(self, *names: str) -> LinearLayer:
        """Several linear layers of the same input as one."""
        parts = [self._weight(f"{name}.weight") for name in names]
        biases = [f"{name}.bias" for name in names if f"{name}.bias" in self._files.shapes]
        bias = self._stacked([self._part(each) for each in biases]) if biases else None
        plain = [part for part in parts if isinstance(part, Tensor)]
        if len(plain) == len(parts):
            return make_linear(self._stacked(plain), bias)
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if not plain and can_stack(quantized):
            weight = stack(quantized).to(self._device)
            return make_quantized_linear(weight, bias, self._dtype, self._keeps_plain)
        return SideBySide(tuple(self.linear(name) for name in names))

    def router(self, name: str) -> Linear:
        """A layer that is never rounded: which experts a token gets hangs on small differences."""
        return make_linear(self._stacked([self._part(f"{name}.weight")]))

    def grouped(self, experts: Sequence[tuple[str, ...]]) -> GroupedLinear:
        """A linear layer for each expert, each several linear layers of the same input stacked; all of one shape."""
        if self._scheme is not None or not all(self._files.is_plain(f"{name}.weight") for name in experts[0]):
            return GroupedLinear(tuple(self.linear(*names) for names in experts), None)
        parts = self._plain_parts(experts[0])
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])

        def fill(number: int, weight: Tensor) -> None:
            _copy_into(weight, self._plain_parts(experts[number]))

        return make_grouped_linear(len(experts), shape, fill, self._dtype, self._device)

    def _plain_parts(self, names: Sequence[str]) -> list[Tensor]:
        return [self._part(f"{name}.weight") for name in names]

    def _weight(self, name: str) -> Stored:
        """This process's part of a linear layer's weight, rounded if that is asked for: before it is cut, so that the
        codes do not depend on the number of processes."""
        if self._scheme is None:
            return self._part(name)
        scheme = head_scheme(self._scheme) if name in (EMBED, HEAD) else self._scheme
        try:
            rounded = quantize(self._files.read(name), scheme)
        except NotFiniteError as error:
            raise ModelFolderError(f"{name}: {error}") from error
        part: Stored = self._cut(name, rounded)
        return part

    def _part(self, name: str) -> Any:
        return self._cut(name, self._files.read(name))

    def _stacked(self, parts: Sequence[Tensor]) -> Tensor:
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        stacked = torch.empty(shape, dtype=self._dtype, device=self._device)
        _copy_into(stacked, parts)
        return stacked


def _copy_into(stacked: Tensor, parts: Sequence[Tensor]) -> None:
    for target, part in zip(stacked.split([part.shape[0] for part in parts]), parts, strict=True):
        target.copy_(part)  # converts and moves in one pass


class TensorFiles:
    """The safetensors files of a folder, opened and checked against the shapes expected. Read-only.

    Args:
        shapes: Of every tensor of the model, as if none were quantised.
        checkpoint: How quantised linear layers are stored; None: there are none.
    """

    def __init__(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]], checkpoint: CheckpointFormat | None = None
    ) -> None:
        self.shapes = shapes
        self._checkpoint = checkpoint
        self._path_of: dict[str, Path] = {}
        self._open: dict[Path, safe_open] = {}
        for path in _weight_paths(folder):
            self._open[path] = _open_safetensors(path)
            self._path_of |= dict.fromkeys(self._open[path].keys(), path)
        self._expected = self._expected_tensors()
        self._check_names(folder)
        for name in self._expected:
            self._check_tensor(name)
        if HEAD in self._path_of and HEAD not in shapes and not torch.equal(self._tensor(HEAD), self._tensor(EMBED)):
            raise ModelFolderError(
                f"{self._path_of[HEAD]}: {HEAD} differs from {EMBED}, but config.json says tie_word_embeddings. "
                "Set it to false there if the model really has its own output weights."
            )

    def read(self, name: str) -> Stored:
        """The tensor as stored; a plain one is a view of the mapped file."""
        if self.is_plain(name):
            return self._tensor(name)
        assert self._checkpoint is not None
        return read_weight(name.removesuffix(".weight"), self._checkpoint, self._path_of, self._tensor)

    def is_plain(self, name: str) -> bool:
        stem = name.removesuffix(".weight")
        return self._checkpoint is None or stem == name or not is_quantized(stem, self._path_of)

    def dtype_of(self, name: str) -> torch.dtype:
        """Of a plain tensor."""
        return STORED_DTYPES[self._open[self._path_of[name]].get_slice(name).get_dtype()]

    def _tensor(self, name: str) -> Tensor:
        return self._open[self._path_of[name]].get_tensor(name)

    def _expected_tensors(self) -> dict[str, StoredTensor]:
        """Name, shape and dtypes of what the files must hold, no more and no less."""
        expected: dict[str, StoredTensor] = {}
        for name, shape in self.shapes.items():
            if self.is_plain(name):
                expected[name] = StoredTensor(shape)
            else:
                assert self._checkpoint is not None
                expected |= stored_tensors(name.removesuffix(".weight"), shape, self._checkpoint, self._path_of)
        return expected

    def _check_names(self, folder: Path) -> None:
        missing = [name for name in self._expected if name not in self._path_of]
        if missing:
            where = ", ".join(path.name for path in self._open)
            raise ModelFolderError(f"{folder}: {where} lacks {_first_of(missing)}, which config.json calls for. {CURE}")
        extra = [name for name in self._path_of if name not in self._expected and not _is_harmless(name)]
        if extra:
            raise ModelFolderError(
                f"{self._path_of[extra[0]]} holds {_first_of(extra)}, which config.json does not call for. "
                f"The two files belong to different models, or the model has a part that is not supported. {CURE}"
            )

    def _check_tensor(self, name: str) -> None:
        path, (expected, dtypes) = self._path_of[name], self._expected[name]
        stored = self._open[path].get_slice(name)
        if tuple(stored.get_shape()) != expected:
            raise ModelFolderError(
                f"{path}: {name} has shape {stored.get_shape()}, but config.json calls for {list(expected)}. {CURE}"
            )
        if stored.get_dtype() not in dtypes:
            raise ModelFolderError(
                f"{path}: {name} is stored as {stored.get_dtype()}; supported here: {', '.join(dtypes)}. "
                "Use the unquantised model."
            )


def has_quantized_weights(folder: Path, config: ModelConfig) -> bool:
    """Whether the folder stores linear layers in few bits. No weight is read."""
    return config.quantization is not None or (not _has_safetensors(folder) and find_gguf(folder) is not None)


def _has_safetensors(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))


def _weight_paths(folder: Path) -> list[Path]:
    """The single file, or every shard the index names."""
    index = folder / INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file():  # as in transformers: an index beside it is of other weights
        return [folder / WEIGHTS_FILE]
    if not index.is_file():
        raise ModelFolderError(
            f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}. Only safetensors weights are loaded: "
            "choose a model that has them, or save it again with transformers' save_pretrained."
        )
    weight_map = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFolderError(f"{index} has no 'weight_map' from tensor names to files. {CURE}")
    for tensor, name in weight_map.items():
        # A plain name: a model comes from anywhere, and must not have files of this machine opened. What the name leads
        # to may be a link (Hugging Face's cache is made of them): only the maker of the folder could have put it there.
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name or "\\" in name:
            raise ModelFolderError(
                f"{index}: 'weight_map' must name a safetensors file in the same folder for each tensor; found "
                f"{shown(name)} for {shown(tensor)}. {CURE}"
            )
    paths = [folder / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        if not path.is_file():
            tensors = [name for name, file in weight_map.items() if file == path.name]
            raise ModelFolderError(f"{path} is missing; {index.name} says it holds {_first_of(tensors)}. {CURE}")
    return paths


def _open_safetensors(path: Path) -> safe_open:
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise ModelFolderError(
                f"{path} cannot be read: its header has {header_bytes:,} bytes, more than {MAX_HEADER_BYTES:,}, which "
                f"no model needs. {CURE}"
            )
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(f"{path} {_what_is_cut(path) or f'cannot be read ({error})'}. {CURE}") from error


def _what_is_cut(path: Path) -> str | None:
    """For a truncated file: which tensor is incomplete, and the sizes. (Format: u64 header size, JSON header, data.)"""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = file.read(min(header_bytes, MAX_HEADER_BYTES))
    ends = [(int(match[2]), match[1]) for match in TENSOR_IN_HEADER.finditer(header)]
    found, start = path.stat().st_size, 8 + header_bytes
    cut = [end for end in ends if start + end[0] > found]
    if len(header) < header_bytes or not cut:
        return None
    first, expected = min(cut)[1].decode(errors="replace"), start + max(cut)[0]
    return f"is truncated at {first}: {found:,} bytes, expected {expected:,}"


def _is_harmless(name: str) -> bool:
    # Old Llama files carry the RoPE frequencies; files of tied models may carry the output weights (checked above).
    return name.endswith(".rotary_emb.inv_freq") or name == HEAD


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
