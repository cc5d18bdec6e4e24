"""The only place where an engine is assembled: check options, join other processes, load, size, build."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from twophase import memory
from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import KVCache, spec_from_option
from twophase.cache.manager import CacheManager
from twophase.config import DEFAULT_MODEL, EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.doors import feature
from twophase.engine.engine import Engine
from twophase.engine.executor import Executor, join
from twophase.engine.model_run import plain_context
from twophase.engine.runner import ModelRunner, Runner
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, model_backend
from twophase.model.machine import make_backend, prefers_kernels, resolve_device, resolve_dtype
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import ModelWeights, has_quantized_weights, load_weights, one_copy
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler

# A prefill chunk delays the decodes beside it: about a second at these sizes on a CPU, a few milliseconds on a GPU.
DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 8192}


class Parts(NamedTuple):
    """An engine and its parts, as documented by `LLM`."""

    model_dir: Path
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    model: LlamaModel
    kv_cache: KVCache
    runner: Runner
    scheduler: Scheduler
    engine: Engine


@plain_context()
def assemble(model: str, config: EngineConfig) -> Parts:
    """Open a model and build an engine around it; raises as `LLM`. Invalid options are refused before a weight is read.

    On ranks other than the driver it does not return: `executor.run` serves until the driver closes.
    """
    target = _check(model, config)
    executor = join(config, target.model, target.device)
    kv_spec = spec_from_option(
        config.kv_cache_dtype,
        num_layers=executor.part.num_layers if target.groups is None else target.groups.size,
        num_kv_heads=executor.part.num_kv_heads,
        head_dim=executor.part.head_dim,
        block_size=config.block_size,
        model_dtype=target.dtype,
    )
    tokenizer = None if config.skip_tokenizer_init else Tokenizer.from_folder(target.folder)
    llama = _load(config, target, executor)
    speculation = _speculation(config, target, executor, tokenizer)

    # A CUDA graph cannot contain an all-reduce with a timeout.
    use_step_graphs = config.use_step_graphs and executor.sum_over_ranks is None
    # In the memory that is left.
    models = [llama] if speculation is None else [llama, *speculation.models]
    bytes_per_block = kv_spec.bytes_per_block + (0 if speculation is None else speculation.bytes_per_block)
    num_blocks = config.num_kv_blocks or _num_blocks(config, target, models, bytes_per_block, use_step_graphs)
    num_blocks = executor.smallest(num_blocks)
    kv_cache = KVCache(kv_spec, num_blocks, executor.device, layout=target.groups and target.groups.layout)
    own = ModelRunner(llama, kv_cache, target.limits.max_model_len, use_step_graphs)
    runner = executor.run(own)
    room = None if config.cache_factory or config.scheduler_factory or own.graphs is None else own.graphs.room
    speculator = speculation.speculator(kv_cache, target.limits, use_step_graphs) if speculation else room
    cache = _cache_factory(config, target.windows)(num_blocks, config.block_size, config.enable_prefix_caching)
    make_scheduler = config.scheduler_factory or partial(Scheduler, policy=config.policy)
    scheduler = make_scheduler(target.limits, cache)
    runners = [own] if speculation is None else [own, *speculation.runners]
    if any(each.graphs is not None for each in runners):
        feature("start_up").warm_up(runners, scheduler)  # last, because graphs take what other memory leaves
    engine = Engine(
        runner,
        scheduler,
        vocab_size=target.model.vocab_size,
        codec=tokenizer,
        eos_token_ids=target.model.eos_token_ids,
        compile_grammar=None if tokenizer is None else _grammar_compiler(tokenizer, target.model.eos_token_ids),
        speculator=speculator,
        seed=config.seed,
        max_trace_steps=config.max_trace_steps,
    )
    return Parts(target.folder, target.model, tokenizer, llama, kv_cache, runner, scheduler, engine)


class _Target(NamedTuple):
    """The model to open, and its options as they were resolved for it. `scheme` is a quantization.schemes.Scheme, and
    `windows` a windows.resolve.Windows, or None."""

    folder: Path
    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    scheme: Any
    windows: Any
    limits: SchedulerConfig

    @property
    def groups(self) -> Any:
        """Groups of layers of different kinds (windows.layer_groups.LayerGroups); None: all layers are of one kind."""
        return None if self.windows is None else self.windows.groups


def _check(model: str, config: EngineConfig) -> _Target:
    """Check pairs of options, and the options against the model's folder and this machine."""
    device, folder = resolve_device(config.device), _find(model)
    model_config = load_config(folder)
    is_quantized, scheme = has_quantized_weights(folder, model_config), None
    if config.quantization is not None:
        scheme = feature("quantization.schemes").scheme_for(config.quantization, folder, is_quantized)
    dtype = resolve_dtype(config.dtype, model_config, device, is_quantized or scheme is not None)
    if model_config.is_mixed or config.uses_features:
        feature("pairs").check_pairs(config, also=("mixed",) if model_config.is_mixed else ())
    windows = None
    if model_config.sliding_window is not None or config.sliding_window is not None or config.num_attention_sinks:
        windows = feature("windows.resolve").resolve_windows(model_config, config)
    limits = limits_of(config, model_config, device)
    memory.check_rope_tables(model_config, limits.max_model_len)
    return _Target(folder, model_config, device, dtype, scheme, windows, limits)


def _find(model: str) -> Path:
    """The model's folder; the model store resolves the built-in model and hub ids."""
    folder = Path(model).expanduser()
    if folder.is_dir() and not model.startswith(DEFAULT_MODEL):
        return folder
    return feature("model_store.prepare").resolve_model(model)


def limits_of(config: EngineConfig, model: ModelConfig, device: torch.device) -> SchedulerConfig:
    """The scheduler's limits, with defaults in place of None. Raises ConfigError for an invalid limit."""
    longest = model.max_position_embeddings
    max_model_len = longest if config.max_model_len is None else config.max_model_len
    if not 2 <= max_model_len <= longest:
        raise ConfigError(
            f"max_model_len must leave room for a prompt and an output token and not exceed the model's "
            f"max_position_embeddings, so be in [2, {longest}], got {max_model_len}."
        )
    budget = config.max_num_batched_tokens
    if budget is None:
        whole = 0 if config.enable_chunked_prefill else max_model_len
        budget = max(DEFAULT_BATCHED_TOKENS[device.type], config.max_num_seqs, whole)
    return SchedulerConfig(
        config.max_num_seqs,
        budget,
        max_model_len,
        config.enable_chunked_prefill,
        watermark=config.admission_watermark,
        admission=config.admission,
    )


def _load(config: EngineConfig, target: _Target, executor: Executor) -> LlamaModel:
    """This process's part of the model."""
    choice = config.attention_backend

    def make(spec: AttentionSpec) -> AttentionBackend:
        spec = spec if target.windows is None else target.windows.narrowed(spec)
        if isinstance(choice, str):
            return make_backend(choice, spec, device=executor.device, dtype=target.dtype, block_size=config.block_size)
        return choice(spec)

    backend = choice if isinstance(choice, AttentionBackend) else model_backend(executor.part, make)
    has_kernels = backend.name == "triton" and target.device.type == "cpu"

    def load() -> ModelWeights:
        place = executor.device, executor.cut, executor.experts
        weights = load_weights(target.folder, target.model, target.dtype, *place, target.scheme)
        return feature("triton.linear").with_kernels(weights) if has_kernels else weights

    form = target.dtype, target.scheme, has_kernels, prefers_kernels(executor.device)
    is_shared = type(executor) is Executor and target.device.type == "cpu"
    weights = one_copy(target.folder, form, load) if is_shared else load()
    sums = executor.sum_over_ranks, executor.dispatch_experts
    return LlamaModel(executor.part, weights, backend, target.limits.max_model_len, *sums)


def _speculation(config: EngineConfig, target: _Target, executor: Executor, tokenizer: Tokenizer | None) -> Any:
    """The draft model or the drafter (speculation.opening.Speculation); None: no speculative decoding here."""
    if not executor.is_driver or (config.speculative_config is None and config.drafter is None):
        return None
    make, is_windowed = feature("speculation.opening").Speculation, target.windows is not None
    return make(config, target.model, tokenizer, executor.device, target.limits.max_model_len, is_windowed)


def _num_blocks(
    config: EngineConfig, target: _Target, models: Sequence[LlamaModel], bytes_per_block: int, has_graphs: bool
) -> int:
    """Blocks in this process's pool, once its weights are loaded: as many as fit, at most as many as useful."""
    limits, useful = target.limits, target.limits.max_num_seqs * -(-target.limits.max_model_len // config.block_size)
    if target.windows is not None:
        useful = target.windows.num_useful_blocks(limits, config.block_size)
    reserved, device = 0, models[0].device
    if device.type == "cuda":
        reserved = feature("start_up").reserved_bytes(models, limits, config.block_size, has_graphs)
    return min(useful, memory.num_blocks_that_fit(bytes_per_block, device, config.kv_memory_fraction, reserved))


def _cache_factory(config: EngineConfig, windows: Any) -> Callable[..., Any]:
    """Makes the allocator from (num_blocks, block_size, enable_prefix_caching)."""
    own, tier = config.cache_factory, config.kv_tier
    if own not in (None, CacheManager):
        return own
    if config.preemption_mode == "swap":
        tier = feature("offloading.host_memory").HostMemoryTier(config.num_swap_blocks)
    return partial(CacheManager, tier=tier) if windows is None else windows.cache_factory(tier)


def _grammar_compiler(tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> Callable[[SamplingParams], Any]:
    """`Guidance.compile` for this vocabulary. The first request with structured outputs makes the `Guidance`."""
    guidance = cache(lambda: feature("structured_outputs.guidance").Guidance(tokenizer.to_json, eos_token_ids))
    return lambda params: guidance().compile(params)
