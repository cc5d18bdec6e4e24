"""Every option of the engine: what it is, its default and its rule. `LLM`, the command line and the tests make views.

An option is a field with its lines of documentation here, and a row of `RULES`. Which options go together is the
business of `twophase_features.pairs`. Nothing heavy is imported: the command line reads this before it knows what to
run.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.rules import FLAG, Rule, apply_rules, number, whole_number
from twophase.core.sampling_params import MAX_SEED
from twophase.core.speculative import SpeculativeConfig
from twophase_features.quantization.schemes import SCHEMES

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_TRACE_STEPS = 10_000
DEFAULT_STEP_TIMEOUT_S = 8.0  # so that a lost peer is an error within 10 seconds

BACKENDS = ("auto", "torch", "triton")
DTYPES = ("auto", "float32", "float16", "bfloat16")
KV_CACHE_DTYPES = (*DTYPES, "int8", "fp8_e4m3")
ADMISSIONS = ("optimistic", "reserve", "estimate")
PREEMPTION_MODES = ("recompute", "swap")


def _one_of(*names: str) -> Rule:
    return _kept(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def _kept(words: str, holds: Callable[[Any], bool]) -> Rule:
    """A value that is kept as it is."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return Rule(words, read)


def _unless_none(rule: Rule) -> Rule:
    return Rule(rule.words, lambda value: None if value is None else rule.read(value))


def _has(*methods: str) -> Callable[[Any], bool]:
    """An object with these methods: not a class, which has them too, before it is called."""
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def _is_power_of_two(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


def _read_block_size(value: Any) -> int:
    size = whole_number().read(value)
    if not _is_power_of_two(size):
        raise ValueError
    return int(size)


RULES: Mapping[str, Rule] = {
    # Text, or a torch.device, which has a type; which devices there are is known when torch is.
    "device": _kept(
        "'auto', 'cpu', 'cuda' or 'cuda:N'", lambda value: isinstance(value, str) or hasattr(value, "type")
    ),
    "dtype": _one_of(*DTYPES),
    "quantization": _unless_none(_one_of(*SCHEMES)),
    "attention_backend": _kept(
        "an AttentionBackend, a function that makes one, or 'auto', 'torch' or 'triton'",
        lambda value: value in BACKENDS if isinstance(value, str) else callable(value) or _has("plan", "attend")(value),
    ),
    "block_size": Rule("a power of two of at least 1, because kernels tile pages by powers of two", _read_block_size),
    "num_kv_blocks": _unless_none(whole_number(1)),
    "kv_memory_fraction": _unless_none(number("in (0, 1]", lambda x: 0 < x <= 1)),
    "max_num_seqs": whole_number(1),
    "max_num_batched_tokens": _unless_none(whole_number(1)),
    "max_model_len": _unless_none(whole_number()),  # the model knows the bounds: `sizing.limits_of`
    "enable_prefix_caching": FLAG,
    "enable_chunked_prefill": FLAG,
    "kv_cache_dtype": _one_of(*KV_CACHE_DTYPES),
    "sliding_window": _unless_none(whole_number(1, note="keys, the token's own among them")),
    "num_attention_sinks": whole_number(0),
    "seed": whole_number(at_least=0, at_most=MAX_SEED),
    "skip_tokenizer_init": FLAG,
    "use_cuda_graphs": FLAG,
    "max_trace_steps": _unless_none(whole_number(0)),
    "policy": _unless_none(_kept("a scheduling policy (twophase.scheduling.policies), or None", _has("rank", "plan"))),
    "admission": _one_of(*ADMISSIONS),
    "preemption_mode": _kept("'recompute' or 'swap'", lambda value: value in PREEMPTION_MODES),
    "num_swap_blocks": _unless_none(whole_number(1)),
    "admission_watermark": number("a share of the pool in [0, 1)", lambda x: 0 <= x < 1),
    "speculative_config": _unless_none(
        _kept("a SpeculativeConfig(...), or None", lambda value: isinstance(value, SpeculativeConfig))
    ),
    "drafter": _unless_none(
        _kept(
            "a drafter (twophase.engine.drafter.Drafter), or None",
            _has("note_plan", "propose", "forget"),
        )
    ),
    "tensor_parallel_size": whole_number(1),
    "enable_expert_parallel": FLAG,
    "peer_timeout_s": number("a positive number of seconds", lambda x: x > 0),
    "cache_factory": _unless_none(_kept("a function that makes a cache manager, or None", callable)),
    "scheduler_factory": _unless_none(_kept("a function that makes a scheduler, or None", callable)),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is asked to be, whatever its model. `LLM(model, **options)` takes the same options.

    Attributes:
        device: Where the model runs: 'auto' (CUDA where there is one), 'cpu', 'cuda', 'cuda:1' and so on.
        dtype: What the model computes in: 'float32', 'float16', 'bfloat16', or 'auto': float32 on a CPU, the model's
            own elsewhere. Of quantised weights, bfloat16 on a CPU that multiplies it.
        quantization: What linear layers are rounded to when the model is loaded: 'int8' (a scale per output),
            'int8_dynamic' (activations too, a scale per token), 'int4' (asymmetric, in groups of 32), 'int4_g64',
            'int4_g128', 'int4_sym', 'int4_g64_sym', 'int4_g128_sym' or 'fp8'. None leaves them as the folder has
            them, which may be quantised already (compressed-tensors, AWQ, GPTQ, GGUF).
        attention_backend: What computes attention: 'torch', 'triton', or 'auto' (Triton on CUDA, else torch). Or an
            `AttentionBackend`, or a function that makes one for the model's `AttentionSpec`.
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
        kv_cache_dtype: What K and V are stored as: 'auto' (the model's), 'float32', 'float16', 'bfloat16', 'int8' or
            'fp8_e4m3'.
        sliding_window: Keys that a query sees, itself included (if not given: the model's own window). Blocks that no
            later query sees are freed, so a sequence's memory is bounded whatever its length.
        num_attention_sinks: Keys at the beginning that stay visible besides the window. A model that was not trained
            with a window needs a few (4), or its text falls apart. Positions stay those of the text (see
            `SlidingWindow`), so `max_model_len` limits a sequence as ever.
        seed: Seeds the requests that have no seed of their own.
        skip_tokenizer_init: Serve token ids only, for folders without a tokenizer.
        use_cuda_graphs: Replay decode steps as CUDA graphs where that is possible.
        max_trace_steps: Steps kept in `engine.trace`; None keeps all.
        policy: What goes into a step, and in which order (twophase.scheduling.policies); None: `PriorityPolicy`.
        admission: What letting a request in leaves free for those that run: 'optimistic', 'reserve' or 'estimate'. A
            block each; their worst case, so that none is ever preempted for want of a block; or what they need if
            they become as long as those that ended (see `SchedulerConfig`).
        preemption_mode: What becomes of the K/V of a request that must make room: 'recompute' drops them, 'swap' saves
            them in host memory.
        num_swap_blocks: Blocks of host memory for that; None: as many as the pool has, and at most a quarter of the
            free host memory. They are pinned for a CUDA device, so nothing else on the machine can have them.
        admission_watermark: Share of the pool that letting a request in must leave free, in [0, 1).
        speculative_config: Guess tokens ahead and verify several in one step; None: never.
        drafter: Guesses in place of the n-gram lookup: where your own can go. Without a `speculative_config` it gets
            `SpeculativeConfig()`.
        tensor_parallel_size: Processes that share the model. All are started by torchrun and run the line that makes
            the LLM; only rank 0 gets beyond it (see twophase_features.parallel.tensor_parallel). Close the LLM, or use
            it in a `with` block, to let the other processes go.
        enable_expert_parallel: Share out whole experts among these processes, in place of a part of each. Each gets as
            many as the others; attention is shared as ever.
        peer_timeout_s: Seconds that one of them may be silent in the middle of a step.
        cache_factory: Makes the cache manager from (num_blocks, block_size, enable_prefix_caching); None:
            `CacheManager`. A cache of your own frees no blocks outside a window unless it does so by itself; an
            `attention_backend` that is ready-made brings its own window, for which nothing is freed.
        scheduler_factory: Makes the scheduler from (config, cache manager); None: `Scheduler`.

    Raises:
        ConfigError: A field breaks its rule, or two contradict each other; names them, the rule and the values.
    """

    device: Any = "auto"  # str | torch.device
    dtype: str = "auto"
    quantization: str | None = None
    attention_backend: Any = "auto"  # str | AttentionBackend | Callable[[AttentionSpec], AttentionBackend]
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_memory_fraction: float | int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    kv_cache_dtype: str = "auto"
    sliding_window: int | None = None
    num_attention_sinks: int = 0
    seed: int = 0
    skip_tokenizer_init: bool = False
    use_cuda_graphs: bool = True
    max_trace_steps: int | None = DEFAULT_TRACE_STEPS
    policy: Any = None  # Policy | None
    admission: str = "optimistic"
    preemption_mode: str = "recompute"
    num_swap_blocks: int | None = None
    admission_watermark: float | int = 0.0
    speculative_config: SpeculativeConfig | None = None
    drafter: Any = None  # Drafter | None
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    peer_timeout_s: float | int = DEFAULT_STEP_TIMEOUT_S
    cache_factory: Callable[..., Any] | None = None
    scheduler_factory: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        apply_rules(self, RULES, ConfigError)
        if self.num_kv_blocks is not None and self.kv_memory_fraction is not None:
            raise ConfigError("num_kv_blocks and kv_memory_fraction both size the pool; give one of them.")
        if self.policy is not None and self.scheduler_factory is not None:
            raise ConfigError("policy and scheduler_factory both decide how requests are scheduled; give one of them.")
        if self.num_swap_blocks is not None and self.preemption_mode != "swap":
            raise ConfigError(
                f"num_swap_blocks sizes the host memory of preemption_mode='swap'; got {self.num_swap_blocks} with "
                f"preemption_mode={self.preemption_mode!r}."
            )

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """How tokens are guessed: as asked for, or as a drafter of one's own gets it; None: not at all."""
        if self.speculative_config is None and self.drafter is not None:
            return SpeculativeConfig()
        return self.speculative_config

    @property
    def draft_model(self) -> str | None:
        """The folder or id of the model that guesses tokens; None: there is none."""
        return None if self.speculative_config is None else self.speculative_config.model


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
    entry = re.search(rf"^ +{name}: (.+?[.;])(?: |$)", _documentation(), re.MULTILINE)
    return "" if entry is None else entry.group(1)[:-1]


def _documentation() -> str:
    """One line for each attribute."""
    return re.sub(r"\n {12}", " ", EngineConfig.__doc__ or "")


DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(EngineConfig) if each.default is not MISSING}
