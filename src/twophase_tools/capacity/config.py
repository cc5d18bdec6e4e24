"""A deployment to be planned, from a YAML or JSON file. The names are those of `LLM` and of vLLM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import yaml

from twophase.core.errors import ConfigError, ModelFolderError
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
    """A mapping whose values are taken out one by one; what is left at the end nobody knows."""

    def __init__(self, values: Any, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{prefix.rstrip('.') or 'a plan'} must be lines of `key: value`, got {values!r:.99}.")
        self._left, self._prefix = dict(values), prefix

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        if key not in self._left and default is _REQUIRED:
            raise ConfigError(f"{self._prefix}{key} is missing; `twophase plan --example` shows it.")
        return self._left.pop(key, default)

    def parsed(self, key: str, parse: Callable[[str], Any], rule: str, default: Any = _REQUIRED) -> Any:
        """What `parse` makes of the value; `rule` is for the complaint when that raises ValueError."""
        value = self.take(key, default)
        if value is default:
            return default
        try:
            return parse(str(value))
        except ValueError:
            raise ConfigError(f"{self._prefix}{key} must be {rule}, got {value!r:.99}.") from None

    def whole(self, key: str, default: Any = _REQUIRED, least: int = 1, most: int = MOST) -> Any:
        return self.parsed(key, _between(int, least, most), f"a whole number in [{least:,}, {most:,}]", default)

    def number(self, key: str, default: Any = _REQUIRED, least: float | int = TINIEST, most: float | int = 1e21) -> Any:
        return self.parsed(key, _between(float, least, most), f"a number in [{least:g}, {most:g}]", default)

    def size(self, key: str, default: Any = _REQUIRED) -> Any:
        return self.parsed(key, bytes_of, "a size such as 80 GB (powers of ten) or 74.5 GiB (powers of two)", default)

    def choice(self, key: str, names: Mapping[str, Any], default: Any = _REQUIRED) -> Any:
        value = self.take(key, default)
        if value is not default and value not in list(names):
            raise ConfigError(f"{self._prefix}{key} must be one of {', '.join(names)}, got {value!r:.99}.")
        return value

    def section(self, key: str) -> "_Section":
        return _Section(self.take(key), f"{self._prefix}{key}.")

    def end(self) -> None:
        if self._left:
            keys = ", ".join(f"{self._prefix}{key}" for key in self._left)
            raise ConfigError(f"unknown key {keys:.99}; `twophase plan --example` shows those there are.")


def _between(make: Callable[[str], int | float], least: int | float, most: int | float) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = make(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


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
    plan.take("engine", None)  # what `write_engine` made of this plan before
    model, num_gpus = str(plan.take("model")), plan.whole("tensor_parallel_size", 1, most=4096)
    shape = _model(model, folder)
    dtype = plan.choice("dtype", DTYPE_BYTES, "bfloat16")
    kv_cache_dtype = plan.choice("kv_cache_dtype", KV_DTYPES, "auto")
    quantization = plan.choice("quantization", SCHEMES, None)
    hardware = _hardware(plan, num_gpus)
    slo = plan.section("slo") if "slo" in plan else None
    workload, assumed = plan.section("workload"), plan.section("assumptions") if "assumptions" in plan else _Section({})
    config = PlanConfig(
        name=name,
        model=model,
        shape=_with_bytes(shape, dtype, quantization, kv_cache_dtype),
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        hardware=hardware,
        tensor_parallel_size=num_gpus,
        gpu_memory_utilization=plan.number("gpu_memory_utilization", 0.9, most=1),
        workspace_bytes=plan.size("workspace", None),
        block_size=plan.whole("block_size", 16),
        max_model_len=plan.whole("max_model_len", least=2),
        max_num_seqs=plan.whole("max_num_seqs", 256),
        max_num_batched_tokens=plan.whole("max_num_batched_tokens", 8192),
        chunk_size=plan.whole("chunk_size", None),
        workload=Workload(workload.number("rate", most=1e9), *map(workload.whole, ("prompt_tokens", "output_tokens"))),
        slo=None if slo is None else Slo(slo.number("ttft_s", None), slo.number("tpot_s", None)),
        assumptions=Assumptions(
            **{
                each.name: assumed.number(each.name, each.default, least=_least(each.name))
                for each in fields(Assumptions)
            }
        ),
        pools=_pools(plan.section("pools"), hardware) if "pools" in plan else None,
    )
    for section in (plan, workload, assumed, *([] if slo is None else [slo])):
        section.end()
    _check(config)
    return config


def _least(assumption: str) -> float:
    """A share of next to nothing would leave the range of floats."""
    return TINIEST if assumption.endswith("efficiency") else 0.0


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
    value = section.take("hardware", default)
    if isinstance(value, Hardware):
        hardware = value
    elif isinstance(value, str):
        hardware = HARDWARE[_Section({"hardware": value}).choice("hardware", HARDWARE)]
    else:
        own = _Section(value, "hardware.")
        hardware = Hardware(
            str(own.take("name", "a GPU of your own")),
            own.number("flops_per_s", least=1),
            own.number("bytes_per_s", least=1),
            float(own.size("memory")),
            own.number("link_bytes_per_s", 0.0, least=1),
            "as given",
        )
        own.end()
    if num_gpus > 1 and not hardware.link_bytes_per_s:
        raise ConfigError("hardware needs link_bytes_per_s, in one direction, for tensor_parallel_size above 1.")
    return hardware


def _pools(pools: _Section, hardware: Hardware) -> PoolsConfig:
    def pool(name: str) -> PoolConfig:
        section = pools.section(name)
        num_gpus, num_engines = section.whole("tensor_parallel_size", 1, most=4096), section.whole("engines", None)
        found = PoolConfig(_hardware(section, num_gpus, hardware), num_gpus, num_engines)
        section.end()
        return found

    found = PoolsConfig(
        pool("prefill"),
        pool("decode"),
        pools.number("link_bytes_per_s", least=1),
        pools.number("link_latency_s", 0.0, least=0, most=1e6),
    )
    pools.end()
    return found
