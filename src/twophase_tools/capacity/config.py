"""A deployment to be planned, from a YAML or JSON file. The names are those of `LLM` and of vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import yaml

from twophase.core.errors import ConfigError, ModelFolderError
from twophase.core.rules import Rule, checked, one_of
from twophase.memory import ROW_ALIGNMENT_BYTES, SCALE_BYTES
from twophase_features.quantization.schemes import SCHEMES
from twophase_tools.capacity.units import bytes_of
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import Assumptions
from twophase_tools.simulate.hardware import HARDWARE, Hardware
from twophase_tools.simulate.model_shapes import MODELS, ModelShape, model_shape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
QUANTISED_BYTES = {"int8": 1, "fp8_e4m3": 1}
KV_DTYPES = {"auto": None} | DTYPE_BYTES | QUANTISED_BYTES
EXAMPLE = Path(__file__).with_name("example.yaml")
TINIEST = 1e-12
MOST = 10**9  # of anything counted: far beyond any use, and small enough for exact arithmetic in floats
_REQUIRED: Any = object()


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
    """Engines of one kind; `num_engines` None: to be proposed."""

    hardware: Hardware
    tensor_parallel_size: int
    num_engines: int | None


@dataclass(frozen=True, slots=True)
class PoolsConfig:
    """Prefill and decode apart; the link goes from an engine of the prefill pool to one of the decode pool."""

    prefill: PoolConfig
    decode: PoolConfig
    link_bytes_per_s: float
    link_latency_s: float


@final
@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A deployment: one engine on `tensor_parallel_size` GPUs, or pools of them.

    Attributes:
        name: Of the file.
        model: As the file names it.
        shape: The model, with the bytes of its weights and of its cache.
        gpu_memory_utilization: Share of a GPU's memory that may be used, in (0, 1].
        workspace_bytes: Of a GPU, beside weights and cache; None: estimated.
        chunk_size: Tokens of a step that has a prefill in it, decodes included, as of the policy
            'chunked:max_tokens=N'; None: as many as the budget allows.
        pools: None: engines compute prompts and decode.
    """

    name: str
    model: str
    shape: ModelShape
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    hardware: Hardware
    tensor_parallel_size: int
    gpu_memory_utilization: float
    workspace_bytes: int | None
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_size: int | None
    workload: Workload
    slo: Slo | None
    assumptions: Assumptions
    pools: PoolsConfig | None

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most."""
        return min(self.max_num_batched_tokens, self.chunk_size or self.max_num_batched_tokens)


class _Section:
    """A mapping whose values are taken out one by one; at the end nothing may be left, nor in the sections in it."""

    def __init__(self, values: Any, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{prefix.rstrip('.') or 'a plan'} must be lines of `key: value`, got {values!r:.99}.")
        self._left, self._prefix = dict(values), prefix
        self._sections: list[_Section] = []

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, rule: Rule | None = None, default: Any = _REQUIRED) -> Any:
        if key not in self._left:
            if default is _REQUIRED:
                raise ConfigError(f"{self._prefix}{key} is missing; `twophase plan --example` shows it.")
            return default
        value = self._left.pop(key)
        return value if rule is None else checked(f"{self._prefix}{key}", value, rule, ConfigError)

    def section(self, key: str, default: Any = _REQUIRED) -> "_Section":
        self._sections.append(_Section(self.take(key, default=default), f"{self._prefix}{key}."))
        return self._sections[-1]

    def end(self) -> None:
        if self._left:
            keys = ", ".join(f"{self._prefix}{key}" for key in self._left)
            raise ConfigError(f"unknown key {keys:.99}; `twophase plan --example` shows those there are.")
        for section in self._sections:
            section.end()


# Values may be text, as a file has them.
SIZE = Rule("a size such as 80 GB (powers of ten) or 74.5 GiB (powers of two)", lambda value: bytes_of(str(value)))


def _whole(least: int = 1, most: int = MOST) -> Rule:
    words = f"a whole number in [{least:,}, {most:,}]"
    return Rule(words, lambda value: int(str(value)), lambda count: least <= count <= most)


def _number(least: float | int = TINIEST, most: float | int = 1e21) -> Rule:
    words = f"a number in [{least:g}, {most:g}]"
    return Rule(words, lambda value: float(str(value)), lambda number: least <= number <= most)


def read_config(path: Path) -> PlanConfig:
    """Raises ConfigError for a file that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the path
        raise ConfigError(f"{path} cannot be read: {error}; `twophase plan --example` prints one.") from error
    return parse_config(text, str(path), path.parent)


def parse_config(source: str, name: str = "plan.yaml", folder: Path = Path()) -> PlanConfig:
    """As `read_config`, from text; a model's folder is looked for from `folder` on."""
    try:
        values = yaml.load(source, Loader=yaml.BaseLoader)  # every value as text: in YAML's own view 2e9 is no number
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from error
    try:
        return config_of(values, name, folder)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def config_of(values: Any, name: str = "plan", folder: Path = Path()) -> PlanConfig:
    """As `parse_config`, from a mapping."""
    plan = _Section(values)
    plan.take("engine", default=None)  # what `write_engine` made of this plan before
    model, num_gpus = str(plan.take("model")), plan.take("tensor_parallel_size", _whole(most=4096), 1)
    shape = _model(model, folder)
    dtype = plan.take("dtype", one_of(*DTYPE_BYTES), "bfloat16")
    kv_cache_dtype = plan.take("kv_cache_dtype", one_of(*KV_DTYPES), "auto")
    quantization = plan.take("quantization", one_of(*SCHEMES), None)
    hardware = _hardware(plan, num_gpus)
    slo = plan.section("slo") if "slo" in plan else None
    workload, assumed = plan.section("workload"), plan.section("assumptions", {})
    config = PlanConfig(
        name=name,
        model=model,
        shape=_with_bytes(shape, dtype, quantization, kv_cache_dtype),
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        hardware=hardware,
        tensor_parallel_size=num_gpus,
        gpu_memory_utilization=plan.take("gpu_memory_utilization", _number(most=1), 0.9),
        workspace_bytes=plan.take("workspace", SIZE, None),
        block_size=plan.take("block_size", _whole(), 16),
        max_model_len=plan.take("max_model_len", _whole(least=2)),
        max_num_seqs=plan.take("max_num_seqs", _whole(), 256),
        max_num_batched_tokens=plan.take("max_num_batched_tokens", _whole(), 8192),
        chunk_size=plan.take("chunk_size", _whole(), None),
        workload=Workload(
            workload.take("rate", _number(most=1e9)),
            workload.take("prompt_tokens", _whole()),
            workload.take("output_tokens", _whole()),
        ),
        slo=None if slo is None else Slo(*(slo.take(name, _number(), None) for name in ("ttft_s", "tpot_s"))),
        assumptions=Assumptions(
            # A share of next to nothing would leave the range of floats.
            **{
                each.name: assumed.take(
                    each.name, _number(TINIEST if each.name.endswith("efficiency") else 0.0), each.default
                )
                for each in fields(Assumptions)
            }
        ),
        pools=_pools(plan.section("pools"), hardware) if "pools" in plan else None,
    )
    plan.end()
    _check(config)
    return config


def _model(name: str, folder: Path) -> ModelShape:
    """With a sliding window, as if all keys were seen: a bound from above."""
    if name in MODELS:
        return MODELS[name]
    try:
        path = folder / Path(name).expanduser()
        if path.is_dir():
            return replace(model_shape(str(path)), name=name)
    except (ModelFolderError, OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model cannot be read: {error}") from error
    raise ConfigError(f"model must be one of {', '.join(MODELS)}, or a folder, and there is none at {path}.")


def _check(config: PlanConfig) -> None:
    """What no engine could run."""
    length, places, budget = config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens
    longest, num_tokens = config.shape.max_position_embeddings, config.workload.num_tokens
    if config.model not in MODELS and length > longest:
        raise ConfigError(f"max_model_len must not exceed the model's {longest:,} positions, got {length:,}.")
    if budget < places:
        raise ConfigError(
            f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in every "
            f"step, got {budget:,} < {places:,}."
        )
    if num_tokens > length:
        raise ConfigError(f"a mean request of {num_tokens:,} tokens is refused by max_model_len {length:,}.")
    if config.block_size & (config.block_size - 1):
        raise ConfigError(f"block_size must be a power of two, because kernels tile pages so, got {config.block_size}.")
    row_bytes = config.shape.head_dim * config.shape.kv_value_bytes
    if row_bytes % ROW_ALIGNMENT_BYTES:
        raise ConfigError(
            f"kv_cache_dtype makes rows of {row_bytes} bytes, and kernels need multiples of {ROW_ALIGNMENT_BYTES}; "
            f"take a wider dtype."
        )


def _with_bytes(shape: ModelShape, dtype: str, quantization: str | None, kv_cache_dtype: str) -> ModelShape:
    sizes = DTYPE_BYTES | QUANTISED_BYTES
    rule = None if quantization is None else shape.why_not_quantized(quantization)
    if rule is not None:
        raise ConfigError(f"quantization {rule}.")
    return replace(
        shape.quantized(quantization),
        value_bytes=DTYPE_BYTES[dtype],
        kv_value_bytes=sizes[dtype if kv_cache_dtype == "auto" else kv_cache_dtype],
        kv_scale_bytes=SCALE_BYTES if kv_cache_dtype in QUANTISED_BYTES else 0,
    )


def _hardware(section: _Section, num_gpus: int, default: Any = _REQUIRED) -> Hardware:
    """A GPU by name, or of one's own."""
    hardware = section.take("hardware", default=default)
    if isinstance(hardware, str):
        hardware = HARDWARE[checked("hardware", hardware, one_of(*HARDWARE), ConfigError)]
    elif not isinstance(hardware, Hardware):
        own = _Section(hardware, "hardware.")
        hardware = Hardware(
            str(own.take("name", default="a GPU of your own")),
            own.take("flops_per_s", _number(least=1)),
            own.take("bytes_per_s", _number(least=1)),
            float(own.take("memory", SIZE)),
            own.take("link_bytes_per_s", _number(least=1), 0.0),
            "as given",
        )
        own.end()
    if num_gpus > 1 and not hardware.link_bytes_per_s:
        raise ConfigError("hardware needs link_bytes_per_s, in one direction, for tensor_parallel_size above 1.")
    return hardware


def _pools(pools: _Section, hardware: Hardware) -> PoolsConfig:
    def pool(name: str) -> PoolConfig:
        section = pools.section(name)
        num_gpus = section.take("tensor_parallel_size", _whole(most=4096), 1)
        return PoolConfig(_hardware(section, num_gpus, hardware), num_gpus, section.take("engines", _whole(), None))

    return PoolsConfig(
        pool("prefill"),
        pool("decode"),
        pools.take("link_bytes_per_s", _number(least=1)),
        pools.take("link_latency_s", _number(0, 1e6), 0.0),
    )
