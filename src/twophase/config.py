"""Every option of the engine, with its meaning, default and rule. `LLM`, the command line and the tests read them here.

Nothing heavy is imported: the command line reads this file before it knows which command to run.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.request import MAX_SEED
from twophase.core.rules import FLAG, Rule, apply_rules, number, one_of, option, optional, rules_of, whole_number
from twophase.doors import feature

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_TRACE_STEPS = 10_000
DEFAULT_STEP_TIMEOUT_S = 8.0  # so that a lost peer is an error within 10 seconds

BACKENDS = ("auto", "torch", "triton")
DTYPES = ("auto", "float32", "float16", "bfloat16")
ADMISSIONS = ("optimistic", "reserve", "estimate")
# Each pair that `twophase_features.pairs` refuses has one of these options, or a model of full and sliding layers.
_IN_PAIRS = ("sliding_window", "num_attention_sinks", "speculative_config", "drafter", "tensor_parallel_size")
_EXCLUSIVE = (
    ("num_kv_blocks", "kv_memory_fraction", "size the pool"),
    ("policy", "scheduler_factory", "decide how requests are scheduled"),
)


def _own(words: str, *methods: str) -> Any:
    """An option that takes None or an object with these methods; a class in place of its object is refused."""
    rule = Rule(f"{words}: an object, not its class, with {', '.join(methods)}", holds=lambda x: _has(x, *methods))
    return option(None, optional(rule))


def _has(value: Any, *methods: str) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


_POWER_OF_TWO = Rule(
    "a power of two of at least 1, because kernels tile pages by powers of two",
    whole_number(1).read,
    lambda n: n.bit_count() == 1,
)
# A torch.device has a type; the available devices are known when torch is imported.
_DEVICE = Rule("'auto', 'cpu', 'cuda' or 'cuda:N'", holds=lambda x: isinstance(x, str) or hasattr(x, "type"))
_BACKEND = Rule(
    "an AttentionBackend, a function that makes one, or 'auto', 'torch' or 'triton'",
    holds=lambda x: x in BACKENDS if isinstance(x, str) else callable(x) or _has(x, "plan", "attend"),
)
_FUNCTION = Rule("a function or a class", holds=callable)
_SPECULATION = Rule(
    "a SpeculativeConfig(...)", holds=lambda value: isinstance(value, feature("speculation.config").SpeculativeConfig)
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options of an engine. `LLM(model, **options)` takes the same options. Raises ConfigError if a field breaks
    its rule, or two contradict each other; it names fields, rule and values.

    Attributes:
        device: Where the model runs: 'auto' (CUDA where there is one), 'cpu', 'cuda', 'cuda:1' and so on.
        dtype: The dtype of activations and plain weights: 'float32', 'float16', 'bfloat16', or 'auto': float32 on a
            CPU, the model's own elsewhere; for quantised weights, bfloat16 on a CPU that multiplies bfloat16.
        quantization: The format to which linear layers are rounded when the model is loaded: 'int8' (a scale per
            output), 'int8_dynamic' (activations too, a scale per token), 'int4' (asymmetric, in groups of 32),
            'int4_g64', 'int4_g128', 'int4_sym', 'int4_g64_sym', 'int4_g128_sym' or 'fp8'. None leaves them as the
            folder has them, which may be quantised already (compressed-tensors, AWQ, GPTQ, GGUF).
        attention_backend: 'torch', 'triton', or 'auto' (Triton on CUDA or where TWOPHASE_KERNELS=cpu is set, else
            torch). Or an `AttentionBackend`, whose window is its own, or a function that makes one for the model's
            `AttentionSpec`.
        block_size: Tokens per K/V block, a power of two.
        num_kv_blocks: Blocks in the pool. None takes `kv_memory_fraction` of the memory that is free once the weights
            are loaded, and never more than `max_num_seqs` sequences of `max_model_len` could use.
        kv_memory_fraction: Share of the free memory for the pool, in (0, 1]. None is 0.9 on CUDA, and on a CPU 0.25, at
            most 2 GiB.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Tokens computed in one step. None is 8192 on CUDA and 512 on a CPU, but at least
            `max_num_seqs`, and without chunked prefill at least `max_model_len`.
        max_model_len: Prompt and output tokens of one sequence. None is the model's own limit.
        enable_prefix_caching: Reuse the K/V of prompt prefixes computed before.
        enable_chunked_prefill: Spread long prompts over several steps.
        kv_cache_dtype: The format of K and V in the cache: 'auto' (the model's), 'float32', 'float16', 'bfloat16',
            'int8' or 'fp8_e4m3'.
        sliding_window: Keys that a query sees, itself included (None: the model's own window); other blocks are freed.
        num_attention_sinks: Keys at the beginning that stay visible besides the window. A model that was not trained
            with a window needs about 4, or its text degenerates.
        seed: Seeds the requests that have no seed of their own.
        skip_tokenizer_init: Serve token ids only, for folders without a tokenizer.
        use_step_graphs: Replay decode steps where that is possible: as CUDA graphs, or on a CPU as recorded launches.
        max_trace_steps: Steps kept in `engine.trace`; None keeps all.
        policy: Chooses the sequences of a step and their order (twophase.scheduling.policy); None: `PriorityPolicy`.
        admission: Blocks that admitting a request leaves free for the running requests: 'optimistic', a block each;
            'reserve', their worst case; 'estimate', as many as finished requests have needed.
        kv_tier: Second-level storage of K/V blocks evicted from the pool (`KVTier`), from which a request with the same
            prefix, or a preempted one, loads them back. Requires prefix caching.
        preemption_mode: 'swap' is short for a `kv_tier` in host memory: the K/V of a preempted request is offloaded and
            loaded back. 'recompute' computes it again.
        num_swap_blocks: Blocks of that tier; None: as many as the pool's, in at most a quarter of the free host memory.
        admission_watermark: Share of the pool that admitting a request must leave free, in [0, 1).
        speculative_config: Options of speculative decoding; None: off.
        drafter: A `Drafter` in place of the n-gram lookup; without a `speculative_config` it gets the default options.
        tensor_parallel_size: Processes that share the model, started by torchrun. `LLM(...)` returns on rank 0 only,
            whose `close` ends the other ranks (see twophase_features.parallel.tensor_parallel).
        enable_expert_parallel: Each rank holds an equal number of whole experts, not a shard of every expert.
        peer_timeout_s: Seconds that a rank may be silent in the middle of a step.
        cache_factory: Makes the `KVAllocator` from (num_blocks, block_size, enable_prefix_caching); None: the engine's
            own. A custom allocator must itself free the blocks that leave a sliding window.
        scheduler_factory: Makes the scheduler from (config, cache manager); None: `Scheduler`.
    """

    device: Any = option("auto", _DEVICE)
    dtype: str = option("auto", one_of(*DTYPES))
    quantization: str | None = option(None, Rule("None", holds=lambda value: value is None))  # or see `__post_init__`
    attention_backend: Any = option("auto", _BACKEND)
    block_size: int = option(16, _POWER_OF_TWO)
    num_kv_blocks: int | None = option(None, optional(whole_number(1)))
    kv_memory_fraction: float | int | None = option(None, optional(number("in (0, 1]", lambda x: 0 < x <= 1)))
    max_num_seqs: int = option(256, whole_number(1))
    max_num_batched_tokens: int | None = option(None, optional(whole_number(1)))
    max_model_len: int | None = option(None, optional(whole_number()))  # the model knows the bounds: `limits_of`
    enable_prefix_caching: bool = option(True, FLAG)
    enable_chunked_prefill: bool = option(True, FLAG)
    kv_cache_dtype: str = option("auto", one_of(*DTYPES, "int8", "fp8_e4m3"))
    sliding_window: int | None = option(None, optional(whole_number(1, note="keys, the token's own among them")))
    num_attention_sinks: int = option(0, whole_number(0))
    seed: int = option(0, whole_number(at_least=0, at_most=MAX_SEED))
    skip_tokenizer_init: bool = option(False, FLAG)
    use_step_graphs: bool = option(True, FLAG)
    max_trace_steps: int | None = option(DEFAULT_TRACE_STEPS, optional(whole_number(0)))
    policy: Any = _own("a scheduling policy (twophase.scheduling.policy.Policy)", "rank", "plan", "fresh")
    admission: str = option("optimistic", one_of(*ADMISSIONS))
    kv_tier: Any = _own("a KV tier (twophase_features.offloading.tier.KVTier)", "attach", "match", "load", "store")
    preemption_mode: str = option("recompute", one_of("recompute", "swap"))
    num_swap_blocks: int | None = option(None, optional(whole_number(1)))
    admission_watermark: float | int = option(0.0, number("a share of the pool in [0, 1)", lambda x: 0 <= x < 1))
    speculative_config: Any = option(None, optional(_SPECULATION))
    drafter: Any = _own("a drafter (twophase_features.speculation.drafter.Drafter)", "note_plan", "propose", "forget")
    tensor_parallel_size: int = option(1, whole_number(1))
    enable_expert_parallel: bool = option(False, FLAG)
    peer_timeout_s: float | int = option(DEFAULT_STEP_TIMEOUT_S, number("a number of seconds > 0", lambda x: x > 0))
    cache_factory: Callable[..., Any] | None = option(None, optional(_FUNCTION))
    scheduler_factory: Callable[..., Any] | None = option(None, optional(_FUNCTION))

    def __post_init__(self) -> None:
        rules = RULES
        if self.quantization is not None:
            rules = RULES | {"quantization": one_of(*feature("quantization.schemes").SCHEMES)}
        apply_rules(self, rules, ConfigError)
        for one, other, purpose in _EXCLUSIVE:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigError(f"{one} and {other} both {purpose}; give one of them.")
        if self.kv_tier is not None or self.num_swap_blocks is not None or self.preemption_mode == "swap":
            feature("offloading.options").check_options(self)

    @property
    def uses_features(self) -> bool:
        """Whether an option is set that `twophase_features.pairs` may refuse beside another."""
        return any(getattr(self, name) != DEFAULTS[name] for name in _IN_PAIRS)


def configured(config: EngineConfig | None, options: Mapping[str, Any]) -> EngineConfig:
    """`config`, or the default configuration, with these options replaced. Raises TypeError for an unknown option, and
    names the most similar one; ConfigError as `EngineConfig`."""
    for name in options:
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
    return EngineConfig(**options) if config is None else replace(config, **options)


DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(EngineConfig)}
RULES = rules_of(EngineConfig)
