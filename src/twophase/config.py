"""Every option of the engine, with its meaning, default and rule. `LLM`, the command line and the tests read them here.

An option is a field of `EngineConfig` with its lines of documentation. Combinations are checked by
`twophase_features.pairs`. Nothing heavy is imported: the command line reads this file before it knows which command to
run.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.request import MAX_SEED
from twophase.core.rules import FLAG, Rule, apply_rules, kept, limited, number, one_of, optional, read_int, whole_number
from twophase.doors import feature
from twophase_features.speculation.config import SpeculativeConfig

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_TRACE_STEPS = 10_000
DEFAULT_STEP_TIMEOUT_S = 8.0  # so that a lost peer is an error within 10 seconds

BACKENDS = ("auto", "torch", "triton")
DTYPES = ("auto", "float32", "float16", "bfloat16")
KV_CACHE_DTYPES = (*DTYPES, "int8", "fp8_e4m3")
ADMISSIONS = ("optimistic", "reserve", "estimate")
PREEMPTION_MODES = ("recompute", "swap")
_POWER_OF_TWO = limited(
    "a power of two of at least 1, because kernels tile pages by powers of two",
    read_int,
    lambda n: n.bit_count() == 1 <= n,
)
# Options of which one is on in every pair that `twophase_features.pairs` refuses, unless the model is mixed.
_IN_PAIRS = ("sliding_window", "num_attention_sinks", "speculative_config", "drafter", "tensor_parallel_size")


def _option(default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


def _own(words: str, holds: Callable[[Any], bool]) -> Any:
    """An option that takes the user's own object, or None."""
    return _option(None, optional(kept(words, holds)))


def _has(*methods: str) -> Callable[[Any], bool]:
    """An object with these methods: not a class, which has them too, before it is called."""
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def _is_device(value: Any) -> bool:
    """Text, or a torch.device, which has a type; the available devices are known when torch is imported."""
    return isinstance(value, str) or hasattr(value, "type")


def _is_backend(value: Any) -> bool:
    return value in BACKENDS if isinstance(value, str) else callable(value) or _has("plan", "attend")(value)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options of an engine. `LLM(model, **options)` takes the same options.

    Attributes:
        device: Where the model runs: 'auto' (CUDA where there is one), 'cpu', 'cuda', 'cuda:1' and so on.
        dtype: The dtype of activations and plain weights: 'float32', 'float16', 'bfloat16', or 'auto': float32 on a
            CPU, the model's own elsewhere. Quantised weights: bfloat16 on a CPU with bfloat16 products.
        quantization: The format to which linear layers are rounded when the model is loaded: 'int8' (a scale per
            output), 'int8_dynamic' (activations too, a scale per token), 'int4' (asymmetric, in groups of 32),
            'int4_g64', 'int4_g128', 'int4_sym', 'int4_g64_sym', 'int4_g128_sym' or 'fp8'. None leaves them as the
            folder has them, which may be quantised already (compressed-tensors, AWQ, GPTQ, GGUF).
        attention_backend: The implementation of attention: 'torch', 'triton', or 'auto' (Triton on CUDA, else torch).
            Or an `AttentionBackend`, whose window is its own, or a function that makes one for the model's
            `AttentionSpec`.
        block_size: Tokens per K/V block, a power of two.
        num_kv_blocks: Blocks in the pool. None takes `kv_memory_fraction` of the memory that is free once the weights
            are loaded, and never more than `max_num_seqs` sequences of `max_model_len` could use. If layers are of
            different kinds, a block serves one group of them.
        kv_memory_fraction: Share of the free memory for the pool, in (0, 1]. None is 0.9 on CUDA, and on a CPU 0.25,
            at most 2 GiB.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Tokens computed in one step. None is 8192 on CUDA and 512 on a CPU, or as many as it
            takes (`max_num_seqs`, and `max_model_len` without chunked prefill).
        max_model_len: Prompt and output tokens of one sequence. None is the model's own limit.
        enable_prefix_caching: Reuse the K/V of prompt prefixes computed before.
        enable_chunked_prefill: Spread long prompts over several steps.
        kv_cache_dtype: The format of K and V in the cache: 'auto' (the model's), 'float32', 'float16', 'bfloat16',
            'int8' or 'fp8_e4m3'.
        sliding_window: Keys that a query sees, itself included (if not given: the model's own window). Blocks that no
            later query sees are freed.
        num_attention_sinks: Keys at the beginning that stay visible besides the window. A model that was not trained
            with a window needs a few (4), or its text falls apart.
        seed: Seeds the requests that have no seed of their own.
        skip_tokenizer_init: Serve token ids only, for folders without a tokenizer.
        use_cuda_graphs: Replay decode steps as CUDA graphs where that is possible.
        max_trace_steps: Steps kept in `engine.trace`; None keeps all.
        policy: Chooses the sequences of a step and their order (twophase.scheduling.policy); None: `PriorityPolicy`.
        admission: Blocks that admitting a request leaves free for the running requests: 'optimistic', a block each;
            'reserve', their worst case; 'estimate', as many as finished requests have needed (`SchedulerConfig`).
        kv_tier: Second-level storage of K/V blocks evicted from the pool (`twophase.cache.tier.KVTier`). A request with
            the same prefix, or a preempted request, loads them back. Requires prefix caching, whose block hashes are
            the keys.
        preemption_mode: 'swap' is short for a `kv_tier` in host memory: the K/V of a preempted request is offloaded and
            loaded back. 'recompute' computes it again.
        num_swap_blocks: Blocks of that tier, pinned for a CUDA device; None: as many as the pool has, and at most a
            quarter of the free host memory.
        admission_watermark: Share of the pool that admitting a request must leave free, in [0, 1).
        speculative_config: Options of speculative decoding; None: off.
        drafter: A `Drafter` in place of the n-gram lookup; without a `speculative_config` it gets the default options.
        tensor_parallel_size: Processes that share the model, started by torchrun; only rank 0 gets beyond the line
            that makes the LLM, and closes it to let the others go (see twophase_features.parallel.tensor_parallel).
        enable_expert_parallel: Share out whole experts among these processes, as many to each, not a part of each.
        peer_timeout_s: Seconds that one of them may be silent in the middle of a step.
        cache_factory: Makes the `KVAllocator` from (num_blocks, block_size, enable_prefix_caching); None: the engine's
            own. A custom allocator must itself free the blocks that leave a sliding window.
        scheduler_factory: Makes the scheduler from (config, cache manager); None: `Scheduler`.

    Raises:
        ConfigError: A field breaks its rule, or two contradict each other; names them, the rule and the values.
    """

    device: Any = _option("auto", kept("'auto', 'cpu', 'cuda' or 'cuda:N'", _is_device))
    dtype: str = _option("auto", one_of(*DTYPES))
    quantization: str | None = _option(None, kept("None", lambda value: value is None))  # or see `__post_init__`
    attention_backend: Any = _option(  # str | AttentionBackend | Callable[[AttentionSpec], AttentionBackend]
        "auto", kept("an AttentionBackend, a function that makes one, or 'auto', 'torch' or 'triton'", _is_backend)
    )
    block_size: int = _option(16, _POWER_OF_TWO)
    num_kv_blocks: int | None = _option(None, optional(whole_number(1)))
    kv_memory_fraction: float | int | None = _option(None, optional(number("in (0, 1]", lambda x: 0 < x <= 1)))
    max_num_seqs: int = _option(DEFAULT_MAX_NUM_SEQS, whole_number(1))
    max_num_batched_tokens: int | None = _option(None, optional(whole_number(1)))
    max_model_len: int | None = _option(None, optional(whole_number()))  # the model knows the bounds: `limits_of`
    enable_prefix_caching: bool = _option(True, FLAG)
    enable_chunked_prefill: bool = _option(True, FLAG)
    kv_cache_dtype: str = _option("auto", one_of(*KV_CACHE_DTYPES))
    sliding_window: int | None = _option(None, optional(whole_number(1, note="keys, the token's own among them")))
    num_attention_sinks: int = _option(0, whole_number(0))
    seed: int = _option(0, whole_number(at_least=0, at_most=MAX_SEED))
    skip_tokenizer_init: bool = _option(False, FLAG)
    use_cuda_graphs: bool = _option(True, FLAG)
    max_trace_steps: int | None = _option(DEFAULT_TRACE_STEPS, optional(whole_number(0)))
    policy: Any = _own("a scheduling policy (twophase.scheduling.policy.Policy)", _has("rank", "plan", "fresh"))
    admission: str = _option("optimistic", one_of(*ADMISSIONS))
    kv_tier: Any = _own("a KV tier (twophase.cache.tier.KVTier)", _has("attach", "match", "load", "store"))
    preemption_mode: str = _option("recompute", one_of(*PREEMPTION_MODES))
    num_swap_blocks: int | None = _option(None, optional(whole_number(1)))
    admission_watermark: float | int = _option(0.0, number("a share of the pool in [0, 1)", lambda x: 0 <= x < 1))
    speculative_config: SpeculativeConfig | None = _own(
        "a SpeculativeConfig(...)", lambda value: isinstance(value, SpeculativeConfig)
    )
    drafter: Any = _own("a drafter (twophase.engine.drafter.Drafter)", _has("note_plan", "propose", "forget"))
    tensor_parallel_size: int = _option(1, whole_number(1))
    enable_expert_parallel: bool = _option(False, FLAG)
    peer_timeout_s: float | int = _option(
        DEFAULT_STEP_TIMEOUT_S, number("a positive number of seconds", lambda x: x > 0)
    )
    cache_factory: Callable[..., Any] | None = _own("a function that makes a cache manager", callable)
    scheduler_factory: Callable[..., Any] | None = _own("a function that makes a scheduler", callable)

    def __post_init__(self) -> None:
        rules = RULES
        if self.quantization is not None:
            rules = RULES | {"quantization": one_of(*feature("quantization.schemes").SCHEMES)}
        apply_rules(self, rules, ConfigError)
        if self.num_kv_blocks is not None and self.kv_memory_fraction is not None:
            raise ConfigError("num_kv_blocks and kv_memory_fraction both size the pool; give one of them.")
        if self.policy is not None and self.scheduler_factory is not None:
            raise ConfigError("policy and scheduler_factory both decide how requests are scheduled; give one of them.")
        if self.num_swap_blocks is not None and self.preemption_mode != "swap":
            raise ConfigError(
                f"num_swap_blocks sizes the host memory of preemption_mode='swap'; got {self.num_swap_blocks} with "
                f"preemption_mode={self.preemption_mode!r}."
            )
        self._check_tier()

    def _check_tier(self) -> None:
        swaps = self.preemption_mode == "swap"
        if self.kv_tier is None and not swaps:
            return
        asked = "preemption_mode='swap'" if swaps else "kv_tier"
        if self.kv_tier is not None and swaps:
            raise ConfigError("preemption_mode='swap' makes a kv_tier of its own; give one of them.")
        if not self.enable_prefix_caching:
            raise ConfigError(f"{asked} finds blocks by their prefix-cache hashes: leave enable_prefix_caching on.")
        if self.cache_factory is not None:
            raise ConfigError(f"{asked} is asked by the engine's own CacheManager; leave cache_factory out.")

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Options of speculative decoding, the default ones for a custom `drafter`; None: off."""
        if self.speculative_config is None and self.drafter is not None:
            return SpeculativeConfig()
        return self.speculative_config

    @property
    def uses_features(self) -> bool:
        """Whether an option is on that `twophase_features.pairs` may refuse beside another."""
        return any(getattr(self, name) != DEFAULTS[name] for name in _IN_PAIRS)


def configured(config: EngineConfig | None, options: Mapping[str, Any]) -> EngineConfig:
    """`config`, or the defaults, with these options in place of its own.

    Raises:
        TypeError: There is no such option; names the nearest one.
        ConfigError: As `EngineConfig`.
    """
    for name in options:
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
    return EngineConfig(**options) if config is None else replace(config, **options)


def help_for(name: str) -> str:
    """The first sentence of an option's documentation; "" where Python was told to keep no docstrings."""
    documentation = re.sub(r"\n {12}", " ", EngineConfig.__doc__ or "")  # one line for each attribute
    entry = re.search(rf"^ +{name}: (.+?[.;])(?: |$)", documentation, re.MULTILINE)
    return "" if entry is None else entry.group(1)[:-1]


DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(EngineConfig)}
RULES: dict[str, Rule] = {each.name: each.metadata["rule"] for each in fields(EngineConfig)}
