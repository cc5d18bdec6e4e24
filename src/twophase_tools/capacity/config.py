"""A deployment to be planned, from a YAML or JSON file. The names are those of `LLM` and of vLLM."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import yaml

from twophase.config import RULES
from twophase.core.errors import ConfigError, ModelFolderError
from twophase.core.rules import TEXT, Rule, checked, number, one_of, option, optional, shown, whole_number
from twophase.memory import ROW_ALIGNMENT_BYTES, SCALE_BYTES
from twophase_features.quantization.schemes import SCHEMES
from twophase_tools.capacity.units import bytes_of
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import Assumptions
from twophase_tools.simulate.hardware import HARDWARE, Hardware
from twophase_tools.simulate.model_shapes import MODELS, ModelShape, model_shape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
QUANTISED_BYTES = {"int8": 1, "fp8_e4m3": 1}
EXAMPLE = Path(__file__).with_name("example.yaml")
MOST = 10**9  # of anything counted: far beyond any use, and small enough for exact arithmetic in floats

COUNT = whole_number(1, MOST)
NUM_GPUS = whole_number(1, 4096)
BLOCK_SIZE = Rule(f"{RULES['block_size'].words} and at most 1e9", RULES["block_size"].read, lambda n: n <= MOST)
SPEED = number("a number in [1, 1e21]", lambda x: 1 <= x <= 1e21)
SHARE = number("a number in [1e-12, 1]", lambda x: 1e-12 <= x <= 1)
RATE = number("a number in [1e-12, 1e9]", lambda x: 1e-12 <= x <= 1e9)
LATENCY = number("a number in [0, 1e6]", lambda x: 0 <= x <= 1e6)
SIZE = Rule("a size such as 80 GB (powers of ten) or 74.5 GiB (powers of two)", lambda value: bytes_of(str(value)))


@dataclass(frozen=True)
class Workload:
    """Requests per second, and the tokens of a mean one."""

    rate: float | int = option(MISSING, RATE)
    prompt_tokens: int = option(MISSING, COUNT)
    output_tokens: int = option(MISSING, COUNT)

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class OwnHardware:
    """A GPU that has no name here; `link_bytes_per_s` in one direction, 0 where it is alone."""

    name: str = option("a GPU of your own", TEXT)
    memory: int = option(MISSING, SIZE)
    flops_per_s: float | int = option(MISSING, SPEED)
    bytes_per_s: float | int = option(MISSING, SPEED)
    link_bytes_per_s: float | int = option(
        0.0, number("0 or a number in [1, 1e21]", lambda x: x == 0 or 1 <= x <= 1e21)
    )


def _record(kind: type, values: Any, where: str) -> Any:
    """A record of a section of the file, whose keys are the record's fields.

    Raises:
        ConfigError: A key that is missing or unknown, or a value that breaks its rule; names the section.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'a plan'} must be lines of `key: value`, got {shown(values)}.")
    prefix, known = f"{where}." * bool(where), {each.name: each for each in fields(kind) if each.init}
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key {prefix}{key!s:.40}; `twophase plan --example` shows those there are.")
    for key, each in known.items():
        if each.default is MISSING and key not in values:
            raise ConfigError(f"{prefix}{key} is missing; `twophase plan --example` shows it.")
    return kind(**{key: _read(known[key].metadata, prefix + key, value) for key, value in values.items()})


def _read(said: Mapping[str, Any], name: str, value: Any) -> Any:
    """The value of a key, by what its field says: its rule, or what makes a record of its section."""
    return said["read"](value, name) if "read" in said else checked(name, value, said["rule"], ConfigError)


def _section(read: Any, default: Any = MISSING) -> Any:
    """A key with a section of its own; `read` makes its value of it."""
    return field(default=default, metadata={"read": read})


def _hardware(value: Any, where: str) -> Hardware:
    """A GPU by name, or of one's own."""
    if isinstance(value, str):
        return HARDWARE[checked(where, value, one_of(*HARDWARE), ConfigError)]
    own = _record(OwnHardware, value, where)
    return Hardware(own.name, own.flops_per_s, own.bytes_per_s, float(own.memory), own.link_bytes_per_s, "as given")


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Engines of one kind, on the plan's hardware unless they have their own; `engines` None: to be proposed."""

    hardware: Hardware | None = _section(_hardware, None)
    tensor_parallel_size: int = option(1, NUM_GPUS)
    engines: int | None = option(None, optional(COUNT))


@dataclass(frozen=True, kw_only=True)
class PoolsConfig:
    """Prefill and decode apart; the link goes from an engine of the prefill pool to one of the decode pool."""

    prefill: PoolConfig = _section(partial(_record, PoolConfig))
    decode: PoolConfig = _section(partial(_record, PoolConfig))
    link_bytes_per_s: float | int = option(MISSING, SPEED)
    link_latency_s: float | int = option(0.0, LATENCY)


@final
@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """A deployment: one engine on `tensor_parallel_size` GPUs, or pools of them.

    Attributes:
        model: One of `MODELS`, or a folder.
        gpu_memory_utilization: Share of a GPU's memory that may be used, in (0, 1].
        workspace: Bytes of a GPU, beside weights and cache; None: estimated.
        chunk_size: Tokens of a step that has a prefill in it, decodes included, as of the policy
            'chunked:max_tokens=N'; None: as many as the budget allows.
        pools: None: engines compute prompts and decode.
        shape: The model, with the bytes of its weights and of its cache.
    """

    model: str = option(MISSING, TEXT)
    hardware: Hardware = _section(_hardware)
    tensor_parallel_size: int = option(1, NUM_GPUS)
    dtype: str = option("bfloat16", one_of(*DTYPE_BYTES))
    quantization: str | None = option(None, optional(one_of(*SCHEMES)))
    kv_cache_dtype: str = option("auto", RULES["kv_cache_dtype"])
    gpu_memory_utilization: float | int = option(0.9, SHARE)
    workspace: int | None = option(None, optional(SIZE))
    block_size: int = option(16, BLOCK_SIZE)
    max_model_len: int = option(MISSING, whole_number(2, MOST))
    max_num_seqs: int = option(256, COUNT)
    max_num_batched_tokens: int = option(8192, COUNT)
    chunk_size: int | None = option(None, optional(COUNT))
    workload: Workload = _section(partial(_record, Workload))
    slo: Slo | None = _section(partial(_record, Slo), None)
    assumptions: Assumptions = _section(partial(_record, Assumptions), Assumptions())
    pools: PoolsConfig | None = _section(partial(_record, PoolsConfig), None)
    shape: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self))
        _check(self)
        if self.pools is not None:
            for pool in (self.pools.prefill, self.pools.decode):
                self.of_pool(pool)

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most."""
        return min(self.max_num_batched_tokens, self.chunk_size or self.max_num_batched_tokens)

    def of_pool(self, pool: PoolConfig) -> "PlanConfig":
        """An engine of the pool. Raises ConfigError for one that cannot be."""
        hardware = pool.hardware or self.hardware
        return replace(self, hardware=hardware, tensor_parallel_size=pool.tensor_parallel_size, pools=None)


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are JSON's: 2e9 is one, while 010 and 1:30, in YAML 1.1 the numbers 8 and 90, are texts."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, form) for tag, form in forms if tag.rpartition(":")[2] not in ("int", "float")]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)


def read_config(path: Path) -> PlanConfig:
    """Raises ConfigError for a file that cannot be used; it names the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the path
        raise ConfigError(f"{path} cannot be read: {error}; `twophase plan --example` prints one.") from error
    try:
        return parse_config(text, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(source: str, folder: Path = Path()) -> PlanConfig:
    """As `read_config`, from text; a model's folder is looked for from `folder` on."""
    try:
        values = yaml.load(source, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a number of 5,000 digits, a 13th month
        raise ConfigError(f"this is not valid YAML: {' '.join(str(error).split())}.") from error
    return config_of(values, folder)


def config_of(values: Any, folder: Path = Path()) -> PlanConfig:
    """As `parse_config`, from a mapping."""
    if isinstance(values, Mapping) and isinstance(name := values.get("model"), str) and name not in MODELS:
        try:
            values = {**values, "model": str(folder / Path(name).expanduser())}
        except RuntimeError as error:  # nobody has that home
            raise ConfigError(f"model {name!r} cannot be read: {error}") from error
    config: PlanConfig = _record(PlanConfig, values, "")
    return config


def _shape(config: PlanConfig) -> ModelShape:
    """The model's, with the config's bytes; with a sliding window, as if all keys were seen: a bound from above."""
    if config.model in MODELS:
        shape = MODELS[config.model]
    elif not Path(config.model).is_dir():
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, or a folder; {config.model} is neither.")
    else:
        try:
            shape = model_shape(config.model)
        except (ModelFolderError, OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"model cannot be read: {error}") from error
    if config.quantization is not None and (rule := shape.why_not_quantized(config.quantization)) is not None:
        raise ConfigError(f"quantization {rule}.")
    stored = config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    return replace(
        shape.quantized(config.quantization),
        value_bytes=DTYPE_BYTES[config.dtype],
        kv_value_bytes=(DTYPE_BYTES | QUANTISED_BYTES)[stored],
        kv_scale_bytes=SCALE_BYTES if stored in QUANTISED_BYTES else 0,
    )


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
    if config.tensor_parallel_size > 1 and not config.hardware.link_bytes_per_s:
        raise ConfigError("hardware needs link_bytes_per_s, in one direction, for tensor_parallel_size above 1.")
    row_bytes = config.shape.head_dim * config.shape.kv_value_bytes
    if row_bytes % ROW_ALIGNMENT_BYTES:
        raise ConfigError(
            f"kv_cache_dtype makes rows of {row_bytes} bytes, and kernels need multiples of {ROW_ALIGNMENT_BYTES}; "
            f"take a wider dtype."
        )
