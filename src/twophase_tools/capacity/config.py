"""A deployment to be planned, as the file describes it. The names are those of `LLM` and of vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from twophase.core.errors import ConfigError, ModelFolderError
from twophase.memory import ROW_ALIGNMENT_BYTES, SCALE_BYTES
from twophase_features.quantization.schemes import SCHEMES
from twophase_tools.capacity import kinds
from twophase_tools.capacity.plan_file import split
from twophase_tools.capacity.yaml_file import Key, YamlFile, read_text
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import Assumptions
from twophase_tools.simulate.hardware import HARDWARE, Hardware
from twophase_tools.simulate.model_shapes import MODELS, ModelShape, model_shape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
QUANTISED_BYTES = {"int8": 1, "fp8_e4m3": 1}

EXAMPLE = Path(__file__).with_name("example.yaml")


@dataclass(frozen=True, slots=True)
class Eviction:
    """What the cache keeps of a sequence: the first `num_sinks` tokens and the last `window`; blocks between are freed
    (attention sinks, arXiv:2309.17453)."""

    window: int
    num_sinks: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests per second, and the tokens of a mean one."""

    rate: float
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Engines of one kind.

    Attributes:
        num_engines: None: to be proposed.
    """

    hardware: Hardware
    tensor_parallel_size: int
    num_engines: int | None


@dataclass(frozen=True, slots=True)
class PoolsConfig:
    """Prefill and decode apart.

    Attributes:
        link_bytes_per_s, link_latency_s: From an engine of the prefill pool to one of the decode pool.
    """

    prefill: PoolConfig
    decode: PoolConfig
    link_bytes_per_s: float
    link_latency_s: float


@final
@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A deployment: one engine on `tensor_parallel_size` GPUs, or pools of them.

    Attributes:
        pools: None: engines compute prompts and decode.
        model: As the file names it.
        shape: The model, with the bytes of its weights and of its cache.
        model_window: Keys that a query of this model sees; None: all.
        gpu_memory_utilization: Share of a GPU's memory that may be used, in (0, 1].
        workspace_bytes: Of a GPU, beside weights and cache; None: estimated.
        chunk_size: Tokens of a step that has a prefill in it, decodes included, as of the policy
            'chunked:max_tokens=N'; None: as many as the budget allows.
        lines: Of the keys in the file.
    """

    name: str
    model: str
    shape: ModelShape
    model_window: int | None
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    hardware: Hardware
    tensor_parallel_size: int
    enable_expert_parallel: bool
    gpu_memory_utilization: float
    workspace_bytes: int | None
    block_size: int
    max_model_len: int
    eviction: Eviction | None
    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_size: int | None
    workload: Workload
    slo: Slo | None
    assumptions: Assumptions
    pools: PoolsConfig | None
    lines: Mapping[str, int]

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most."""
        return min(self.max_num_batched_tokens, self.chunk_size or self.max_num_batched_tokens)

    @property
    def num_visible(self) -> int | None:
        """Keys that a query reads at most; None: all."""
        evicted = None if self.eviction is None else self.eviction.window + self.eviction.num_sinks
        known = [limit for limit in (evicted, self.model_window) if limit is not None]
        return min(known, default=None)


_HARDWARE_KEYS = {
    "name": Key(kinds.text, default="a GPU of your own"),
    "memory": Key(kinds.size),
    "flops_per_s": Key(kinds.number_from(1)),
    "bytes_per_s": Key(kinds.number_from(1)),
    "link_bytes_per_s": Key(kinds.number_from(1), default=None),
}

_ASSUMPTION_KINDS = {"compute_efficiency": kinds.share, "bandwidth_efficiency": kinds.share}

_POOL_KEYS = {
    "hardware": Key(kinds.choice(HARDWARE), _HARDWARE_KEYS, default=None),
    "tensor_parallel_size": Key(kinds.whole(0, most=4096), default=1),
    "engines": Key(kinds.whole(0, most=10_000), default=None),
}

KEYS = {
    "model": Key(kinds.text),
    "dtype": Key(kinds.choice(DTYPE_BYTES), default="bfloat16"),
    "quantization": Key(kinds.choice(SCHEMES), default=None),
    "kv_cache_dtype": Key(kinds.choice(("auto", *DTYPE_BYTES, *QUANTISED_BYTES)), default="auto"),
    "hardware": Key(kinds.choice(HARDWARE), _HARDWARE_KEYS),
    "tensor_parallel_size": Key(kinds.whole(1, most=4096), default=1),
    "enable_expert_parallel": Key(kinds.flag, default=False),
    "gpu_memory_utilization": Key(kinds.share, default=0.9),
    "workspace": Key(kinds.size, default=None),
    "block_size": Key(kinds.power_of_two, default=16),
    "max_model_len": Key(kinds.whole(2)),
    "eviction": Key(
        kinds.choice(("auto", "none")),
        {"window": Key(kinds.whole(1)), "sinks": Key(kinds.whole(0), default=0)},
        default="auto",
    ),
    "max_num_seqs": Key(kinds.whole(1), default=256),
    "max_num_batched_tokens": Key(kinds.whole(1), default=8192),
    "chunk_size": Key(kinds.whole(1), default=None),
    "workload": Key(
        keys={
            "rate": Key(kinds.number(0, most=1e9)),
            "prompt_tokens": Key(kinds.whole(1)),
            "output_tokens": Key(kinds.whole(1)),
        }
    ),
    "slo": Key(
        keys={"ttft_s": Key(kinds.number(0), default=None), "tpot_s": Key(kinds.number(0), default=None)}, default=None
    ),
    "pools": Key(
        keys={
            "prefill": Key(keys=_POOL_KEYS),
            "decode": Key(keys=_POOL_KEYS),
            "link_bytes_per_s": Key(kinds.number_from(1)),
            "link_latency_s": Key(kinds.number_from(0, most=1e6), default=0.0),
        },
        default=None,
    ),
    "assumptions": Key(
        keys={
            each.name: Key(_ASSUMPTION_KINDS.get(each.name, kinds.number_from(0)), default=each.default)
            for each in fields(Assumptions)
            if each.name != "host_bytes_per_s"  # nothing is swapped in a plan
        },
        default=None,
    ),
}


def read_config(path: Path) -> PlanConfig:
    """Raises ConfigError for a file that cannot be used: every mistake in it, with line and likely fix."""
    return parse_config(read_text(path), str(path), path.parent)


def parse_config(source: str, name: str = "config.yaml", folder: Path = Path()) -> PlanConfig:
    """As `read_config`, from text; a model's folder is looked for from `folder` on."""
    file = YamlFile(name)
    plan, _ = split(source, name)  # what was written from it before is the engine's
    values = file.read(plan, KEYS)
    file.raise_complaints()
    shape, window, longest = _model(file, values["model"], folder)
    file.raise_complaints()
    _check(file, values, shape, longest)
    file.raise_complaints()
    slo = values["slo"]
    return PlanConfig(
        name=name,
        shape=_with_bytes(shape, values["dtype"], values["quantization"], values["kv_cache_dtype"]),
        model_window=window,
        hardware=_hardware(values["hardware"]),
        workspace_bytes=values["workspace"],
        eviction=_eviction(values["eviction"], window, values["max_model_len"]),
        workload=Workload(**values["workload"]),
        slo=None if slo is None else Slo(**slo),
        assumptions=Assumptions(**(values["assumptions"] or {})),
        pools=_pools(values),
        lines=file.lines,
        **{key: values[key] for key in _AS_THEY_ARE},
    )


_AS_THEY_ARE = (
    "model",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "enable_expert_parallel",
    "gpu_memory_utilization",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "chunk_size",
)


def _eviction(choice: Any, model_window: int | None, max_model_len: int) -> Eviction | None:
    """'auto' is what the engine does: a model's own window frees what leaves it."""
    if isinstance(choice, str):
        if choice == "none" or model_window is None or model_window >= max_model_len:
            return None
        return Eviction(model_window, 0)
    return Eviction(choice["window"], choice["sinks"])


def _model(file: YamlFile, name: str, folder: Path) -> tuple[ModelShape, int | None, int | None]:
    """The model's shape, its sliding window, and its longest context as far as known."""
    if name in MODELS:
        return MODELS[name], None, None
    from twophase.model.config import load_config

    path = folder / Path(name).expanduser() if name.startswith("~") else folder / name
    try:
        if path.is_dir():
            config = load_config(path)
            return replace(model_shape(str(path)), name=name), config.sliding_window, config.max_position_embeddings
        file.complain(
            "model",
            f"must be {kinds.one_of(MODELS)}, or a folder with a config.json; there is no folder {path}"
            f"{kinds.did_you_mean(name, MODELS)}",
        )
    except (ModelFolderError, ConfigError, OSError, ValueError, RuntimeError) as error:
        file.complain("model", f"cannot be read: {str(error).rstrip('.')}")
    return MODELS["llama-3-8b"], None, None  # of no use: there is a complaint


def _check(file: YamlFile, values: Mapping[str, Any], shape: ModelShape, longest: int | None) -> None:
    """What no engine could run, across keys."""
    length, places, budget = (values[key] for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"))
    if longest is not None and length > longest:
        file.complain("max_model_len", f"must not exceed the model's {longest:,} positions, got {length:,}")
    if budget < places:
        file.complain(
            "max_num_batched_tokens",
            f"must be at least max_num_seqs, so that every running sequence can decode in every step, got {budget:,} "
            f"< {places:,}; raise one or lower the other",
            "max_num_seqs",
        )
    workload = values["workload"]
    num_tokens = workload["prompt_tokens"] + workload["output_tokens"]
    if num_tokens > length:
        file.complain(
            "workload",
            f"has a mean request of {workload['prompt_tokens']:,} + {workload['output_tokens']:,} tokens, which "
            f"max_model_len {length:,} refuses; raise it to {num_tokens:,} at least, or shorten the requests",
        )
    if values["slo"] is not None and not any(values["slo"].values()):
        file.complain("slo", "promises nothing; give ttft_s, tpot_s or both, or remove it")
    hardware = values["hardware"]
    if not isinstance(hardware, str) and values["tensor_parallel_size"] > 1 and hardware["link_bytes_per_s"] is None:
        file.complain("hardware", "needs link_bytes_per_s, bytes/s in one direction, for tensor_parallel_size above 1")
    _check_experts(file, values, shape)
    _check_quantization(file, values["quantization"], shape)
    _check_pools(file, values, shape)
    stored = values["kv_cache_dtype"] if values["kv_cache_dtype"] != "auto" else values["dtype"]
    row_bytes = shape.head_dim * (DTYPE_BYTES | QUANTISED_BYTES)[stored]
    if row_bytes % ROW_ALIGNMENT_BYTES:
        file.complain(
            "kv_cache_dtype",
            f"{stored} makes rows of {shape.head_dim} values {row_bytes} bytes long, and kernels need multiples of "
            f"{ROW_ALIGNMENT_BYTES}; take a wider dtype",
            "model",
        )


def _check_experts(file: YamlFile, values: Mapping[str, Any], shape: ModelShape) -> None:
    if not values["enable_expert_parallel"]:
        return
    count, num_gpus = 0 if shape.experts is None else shape.experts.num_experts, values["tensor_parallel_size"]
    if not count:
        file.complain("enable_expert_parallel", f"shares out experts, and {shape.name} has none")
    elif count % num_gpus:
        file.complain(
            "enable_expert_parallel",
            f"gives each GPU as many experts as the others, and {num_gpus} cannot share {count} evenly",
            "tensor_parallel_size",
        )


def _check_quantization(file: YamlFile, name: str | None, shape: ModelShape) -> None:
    """As the engine does when it loads the weights."""
    rule = None if name is None else shape.why_not_quantized(name)
    if rule is not None:
        file.complain("quantization", rule, "model")


def _check_pools(file: YamlFile, values: Mapping[str, Any], shape: ModelShape) -> None:
    if values["pools"] is None:
        return
    for name in ("prefill", "decode"):
        key, pool = f"pools.{name}", values["pools"][name]
        num_gpus = pool["tensor_parallel_size"]
        for part in ("engines", "tensor_parallel_size"):
            if pool[part] == 0:
                file.complain(f"{key}.{part}", "leaves this pool without GPUs; it needs at least 1")
        hardware = values["hardware"] if pool["hardware"] is None else pool["hardware"]
        if not isinstance(hardware, str) and num_gpus > 1 and hardware["link_bytes_per_s"] is None:
            rule = "needs link_bytes_per_s, bytes/s in one direction, for tensor_parallel_size above 1"
            file.complain(f"{key}.hardware", rule, key)
        count = 0 if shape.experts is None else shape.experts.num_experts
        if values["enable_expert_parallel"] and num_gpus and count % num_gpus:
            rule = f"gives each GPU as many experts as the others, and {num_gpus} cannot share {count} evenly"
            file.complain(f"{key}.tensor_parallel_size", rule, key)
    if not isinstance(values["eviction"], str):
        file.complain("pools", "send all of a prompt's K and V, and eviction frees some of them on the way; remove one")


def _pools(values: Mapping[str, Any]) -> PoolsConfig | None:
    pools = values["pools"]
    if pools is None:
        return None

    def pool(of: Mapping[str, Any]) -> PoolConfig:
        hardware = _hardware(values["hardware"] if of["hardware"] is None else of["hardware"])
        return PoolConfig(hardware, of["tensor_parallel_size"], of["engines"])

    return PoolsConfig(
        pool(pools["prefill"]), pool(pools["decode"]), pools["link_bytes_per_s"], pools["link_latency_s"]
    )


def _with_bytes(shape: ModelShape, dtype: str, quantization: str | None, kv_cache_dtype: str) -> ModelShape:
    is_quantised = kv_cache_dtype in QUANTISED_BYTES
    stored = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    return replace(
        shape.quantized(quantization),
        value_bytes=DTYPE_BYTES[dtype],
        kv_value_bytes=(DTYPE_BYTES | QUANTISED_BYTES)[stored],
        kv_scale_bytes=SCALE_BYTES if is_quantised else 0,
    )


def _hardware(value: str | dict[str, Any]) -> Hardware:
    if isinstance(value, str):
        return HARDWARE[value]
    return Hardware(
        value["name"],
        value["flops_per_s"],
        value["bytes_per_s"],
        float(value["memory"]),
        value["link_bytes_per_s"] or 0.0,  # not given: a GPU alone, which uses none
        "as given",
    )
