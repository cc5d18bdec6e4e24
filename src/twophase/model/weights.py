"""A model's weights: from safetensors files into frozen records of tensors, fused and laid out for speed.

Fused: q, k and v are one matrix, gate and up another, because one large product is faster than several small ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase.model.config import ModelConfig, read_json_object
from twophase.model.experts import EXPERT_NAMES, SparseMLP, expert_shapes, is_sparse
from twophase.model.linear import GroupedLinear, Linear, make_grouped_linear, make_linear

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ALL_EXPERTS = slice(None)
CURE = "Download the model again."


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """The MLP of every token. N hidden, I intermediate.

    Attributes:
        gate_up: N -> 2 I: gate, then up.
        down: I -> N.
    """

    gate_up: Linear
    down: Linear


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
    qkv: Linear
    q_norm: Float[Tensor, "D"] | None
    k_norm: Float[Tensor, "D"] | None
    o: Linear
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
    lm_head: Linear


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    cut: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
    experts: slice = ALL_EXPERTS,
) -> ModelWeights:
    """Read every tensor the configuration calls for.

    Args:
        cut: Given the name and the whole of a linear layer's tensor, the part of it to keep.
        experts: Which of each layer's experts to keep; nothing is read of the others.

    Raises:
        ModelFolderError: A file is missing or truncated; a tensor is missing, unexpected, of another shape or of a
            dtype that is not a plain float. Names the file and the tensor.
    """
    files = TensorFiles(folder, expected_shapes(config))
    loader = _Loader(files, dtype, device, cut, config.norm_offset)
    embed = loader.tensor(EMBED, min(dtype, files.dtype_of(EMBED), key=lambda each: each.itemsize))
    if config.tie_word_embeddings and embed.dtype == dtype:
        lm_head = make_linear(cut(EMBED, embed))  # the same memory, but where a CPU wants a layout of its own
    else:
        lm_head = loader.linear((EMBED if config.tie_word_embeddings else HEAD).removesuffix(".weight"))
    return ModelWeights(
        dtype=dtype,
        embed=embed,
        layers=tuple(_load_layer(loader, config, layer, experts) for layer in range(config.num_layers)),
        final_norm=loader.gain("model.norm"),
        lm_head=lm_head,
    )


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
        router=loader.linear(f"{block}.gate"),
        gate_up=loader.grouped([(expert + names.gate, expert + names.up) for expert in kept]),
        down=loader.grouped([(expert + names.down,) for expert in kept]),
    )


class _Loader:
    """Copies tensors out of their files, converted. The files are mapped, so nothing is read twice or kept."""

    def __init__(
        self,
        files: "TensorFiles",
        dtype: torch.dtype,
        device: torch.device,
        cut: Callable[[str, Tensor], Tensor],
        norm_offset: float = 0.0,
    ) -> None:
        self._files = files
        self._norm_offset = norm_offset
        self._cut = cut
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._files.read(name).to(self._device, dtype or self._dtype, copy=True)

    def gain(self, name: str) -> Tensor:
        """What a norm multiplies by."""
        if not self._norm_offset:
            return self.tensor(f"{name}.weight")
        return self.tensor(f"{name}.weight", torch.float32).add_(self._norm_offset)

    def linear(self, *names: str) -> Linear:
        """Several linear layers of the same input, stacked into one."""
        weight = self._stacked([f"{name}.weight" for name in names])
        biases = [f"{name}.bias" for name in names if f"{name}.bias" in self._files.shapes]
        return make_linear(weight, self._stacked(biases) if biases else None)

    def grouped(self, experts: Sequence[tuple[str, ...]]) -> GroupedLinear:
        """A linear layer for each expert, each several linear layers of the same input stacked; all of one shape."""
        parts = self._parts([f"{name}.weight" for name in experts[0]])
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])

        def fill(number: int, weight: Tensor) -> None:
            _copy_into(weight, self._parts([f"{name}.weight" for name in experts[number]]))

        return make_grouped_linear(len(experts), shape, fill, self._dtype, self._device)

    def _stacked(self, names: list[str]) -> Tensor:
        parts = self._parts(names)
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        stacked = torch.empty(shape, dtype=self._dtype, device=self._device)
        _copy_into(stacked, parts)
        return stacked

    def _parts(self, names: list[str]) -> list[Tensor]:
        return [self._cut(name, self._files.read(name)) for name in names]


def _copy_into(stacked: Tensor, parts: Sequence[Tensor]) -> None:
    for target, part in zip(stacked.split([part.shape[0] for part in parts]), parts, strict=True):
        target.copy_(part)  # converts and moves in one pass


class TensorFiles:
    """The safetensors files of a folder, opened and checked against the shapes expected. Read-only."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._path_of: dict[str, Path] = {}
        self._open: dict[Path, safe_open] = {}
        for path in _weight_paths(folder):
            self._open[path] = _open_safetensors(path)
            self._path_of |= dict.fromkeys(self._open[path].keys(), path)
        self._check_names(folder)
        for name in shapes:
            self._check_tensor(name)
        if HEAD in self._path_of and HEAD not in shapes and not torch.equal(self.read(HEAD), self.read(EMBED)):
            raise ModelFolderError(
                f"{self._path_of[HEAD]}: {HEAD} differs from {EMBED}, but config.json says tie_word_embeddings. "
                "Set it to false there if the model really has its own output weights."
            )

    def read(self, name: str) -> Tensor:
        """The tensor as stored: a view of the mapped file."""
        return self._open[self._path_of[name]].get_tensor(name)

    def dtype_of(self, name: str) -> torch.dtype:
        return STORED_DTYPES[self._open[self._path_of[name]].get_slice(name).get_dtype()]

    def _check_names(self, folder: Path) -> None:
        missing = [name for name in self.shapes if name not in self._path_of]
        if missing:
            where = ", ".join(path.name for path in self._open)
            raise ModelFolderError(f"{folder}: {where} lacks {_first_of(missing)}, which config.json calls for. {CURE}")
        extra = [name for name in self._path_of if name not in self.shapes and not _is_harmless(name)]
        if extra:
            raise ModelFolderError(
                f"{self._path_of[extra[0]]} holds {_first_of(extra)}, which config.json does not call for. "
                f"The two files belong to different models, or the model has a part that is not supported. {CURE}"
            )

    def _check_tensor(self, name: str) -> None:
        path, expected = self._path_of[name], self.shapes[name]
        stored = self._open[path].get_slice(name)
        if tuple(stored.get_shape()) != expected:
            raise ModelFolderError(
                f"{path}: {name} has shape {stored.get_shape()}, but config.json calls for {list(expected)}. {CURE}"
            )
        if stored.get_dtype() not in STORED_DTYPES:
            raise ModelFolderError(
                f"{path}: {name} is stored as {stored.get_dtype()}; supported: {', '.join(STORED_DTYPES)}. "
                "Use the unquantised model."
            )


def _weight_paths(folder: Path) -> list[Path]:
    """The single file, or every shard the index names."""
    index = folder / INDEX_FILE
    if not index.is_file():
        if not (folder / WEIGHTS_FILE).is_file():
            raise ModelFolderError(
                f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}. Only safetensors weights are loaded: "
                "choose a model that has them, or save it again with transformers' save_pretrained."
            )
        return [folder / WEIGHTS_FILE]
    weight_map = read_json_object(index).get("weight_map")
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
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(f"{path} {_what_is_cut(path) or f'cannot be read ({error})'}. {CURE}") from error


def _what_is_cut(path: Path) -> str | None:
    """For a truncated file: which tensor is incomplete, and the sizes. (Format: u64 header size, JSON header, data.)"""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(header_bytes))
        except (ValueError, MemoryError, OverflowError):
            return None
    ends = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
    found, expected = path.stat().st_size, 8 + header_bytes + max(ends.values(), default=0)
    if found >= expected:
        return None
    first_cut = min((end, name) for name, end in ends.items() if 8 + header_bytes + end > found)[1]
    return f"is truncated at {first_cut}: {found:,} bytes, expected {expected:,}"


def _is_harmless(name: str) -> bool:
    # Old Llama files carry the RoPE frequencies; files of tied models may carry the output weights (checked above).
    return name.endswith(".rotary_emb.inv_freq") or name == HEAD


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
