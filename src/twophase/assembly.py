"""The only place where an engine is assembled: check options, join other processes, load, size, build.

A feature is named here by a string (`doors.feature`) and imported when an option or the model asks for it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from twophase import memory
from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import KVCache, KVCacheSpec, spec_from_option
from twophase.cache.manager import CacheManager
from twophase.cache.tier import KVTier
from twophase.config import DEFAULT_MODEL, EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.doors import feature
from twophase.engine.engine import Engine
from twophase.engine.executor import Executor, join
from twophase.engine.model_run import plain_context
from twophase.engine.runner import ModelRunner, Runner
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, layer_groups, model_backend
from twophase.model.machine import make_backend, resolve_device, resolve_dtype
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import has_quantized_weights, load_weights
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """An engine and its parts, as documented by `LLM`."""

    folder: Path
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    model: LlamaModel
    kv_cache: KVCache
    runner: Runner
    scheduler: Scheduler
    engine: Engine


@plain_context()
def assemble(model: str, config: EngineConfig) -> Parts:
    """Open a model and build an engine around it. Invalid options are refused before a weight is read.

    Raises:
        ModelFolderError, ConfigError, BackendUnavailableError, PeerLostError, SystemExit: See `LLM`.
    """
    target = _check(model, config)
    executor = join(config, target.model_config, target.device)
    tokenizer = None if config.skip_tokenizer_init else Tokenizer.from_folder(target.folder)
    part = _load(target, executor)
    speculation = None
    if config.speculation is not None and executor.is_driver:
        speculation = feature("speculation.opening").open_speculation(
            config, target.model_config, tokenizer, executor.device, target.limits.max_model_len, target.window
        )
    bytes_per_block = target.kv_spec(executor.part).bytes_per_block
    bytes_per_block += 0 if speculation is None else speculation.bytes_per_block
    num_blocks = executor.smallest(_num_blocks(target, executor, bytes_per_block))
    return _build(target, executor, part, tokenizer, speculation, num_blocks)


# -- check


@dataclass(frozen=True, slots=True)
class _Target:
    """A checked model folder and its options, with every 'auto' resolved.

    Attributes:
        model_config: The whole model's, also where several processes share the model.
        window: The `SlidingWindow` of the queries; in a mixed model, of its sliding layers. None: no window.
        groups: The `LayerGroups` of a mixed model.
    """

    config: EngineConfig
    folder: Path
    model_config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    limits: SchedulerConfig
    window: Any
    groups: Any

    def kv_spec(self, part: ModelConfig) -> KVCacheSpec:
        """The cache spec for this process's part of the model."""
        return spec_from_option(
            self.config.kv_cache_dtype,
            num_layers=part.num_layers if self.groups is None else self.groups.size,
            num_kv_heads=part.num_kv_heads,
            head_dim=part.head_dim,
            block_size=self.config.block_size,
            model_dtype=self.dtype,
        )


def _check(model: str, config: EngineConfig) -> _Target:
    """Check each option alone, then pairs of options, then the options against the model's folder."""
    device = resolve_device(config.device)
    folder = _find(model)
    model_config = load_config(folder)
    is_stored_quantized = has_quantized_weights(folder, model_config)
    if is_stored_quantized and config.quantization is not None:
        raise ConfigError(
            f"quantization={config.quantization!r} rounds plain weights, but the weights in {folder} are "
            f"already quantised: leave it out."
        )
    is_quantized = is_stored_quantized or config.quantization is not None
    dtype = resolve_dtype(config.dtype, model_config, device, is_quantized)
    if model_config.is_mixed or config.uses_features:
        feature("pairs").check_pairs(config, also=("mixed",) if model_config.is_mixed else ())
    window = None
    if model_config.sliding_window is not None or config.sliding_window is not None or config.num_attention_sinks:
        window = feature("windows.resolve").resolve_window(model_config, config)
    limits = memory.limits_of(config, model_config, device)
    memory.check_rope_tables(model_config, limits.max_model_len)
    groups = layer_groups(model_config)
    target = _Target(config, folder, model_config, device, dtype, limits, window, groups)
    target.kv_spec(model_config)  # raises for heads that blocks cannot hold
    return target


def _find(model: str) -> Path:
    """A model's folder; the built-in and the hub's models come from the model store."""
    folder = Path(model).expanduser()
    if folder.is_dir() and not model.startswith(DEFAULT_MODEL):
        return folder
    resolved: Path = feature("model_store.prepare").resolve_model(model)
    return resolved


# -- load


def _load(target: _Target, executor: Executor) -> LlamaModel:
    """This process's part of the model."""
    backend = _backend(target, executor)
    scheme = None
    if target.config.quantization is not None:
        scheme = feature("quantization.schemes").SCHEMES[target.config.quantization]
    weights = load_weights(
        target.folder, target.model_config, target.dtype, executor.device, executor.cut, executor.experts, scheme
    )
    max_model_len = target.limits.max_model_len
    return LlamaModel(
        executor.part, weights, backend, max_model_len, executor.sum_over_ranks, executor.dispatch_experts
    )


def _backend(target: _Target, executor: Executor) -> AttentionBackend:
    choice, window, block_size = target.config.attention_backend, target.window, target.config.block_size
    if isinstance(choice, AttentionBackend):
        return choice

    def make(spec: AttentionSpec) -> AttentionBackend:
        if window is not None and target.groups is None:
            spec = replace(spec, window=window.window, num_sinks=window.num_sinks)
        if isinstance(choice, str):
            return make_backend(choice, spec, device=executor.device, dtype=target.dtype, block_size=block_size)
        backend: AttentionBackend = choice(spec)
        return backend

    return model_backend(executor.part, make)


# -- size


def _num_blocks(target: _Target, executor: Executor, bytes_per_block: int) -> int:
    """Blocks in this process's pool, once its weights are loaded."""
    config, limits, window, groups = target.config, target.limits, target.window, target.groups
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    window_blocks = None if window is None else window.max_blocks(config.block_size)
    sees_all = (False,) if groups is None else groups.sees_all
    useful = memory.num_useful_blocks(limits, config.block_size, window_blocks, sees_all)
    is_on_gpu = executor.device.type == "cuda"
    for_a_step = memory.step_bytes(executor.part, limits, target.dtype) if is_on_gpu else 0
    fraction = config.kv_memory_fraction
    return min(useful, memory.default_num_blocks(bytes_per_block, executor.device, fraction, for_a_step))


# -- build


def _build(
    target: _Target,
    executor: Executor,
    model: LlamaModel,
    tokenizer: Tokenizer | None,
    speculation: Any,  # speculation.opening.Speculation | None
    num_blocks: int,
) -> Parts:
    """The cache, the runner, the scheduler and the engine. In a process that is not the driver: serve, and exit."""
    config, eos_token_ids, limits = target.config, target.model_config.eos_token_ids, target.limits
    places = None if target.groups is None else target.groups.places
    kv_cache = KVCache(target.kv_spec(executor.part), num_blocks, executor.device, places=places)
    # A CUDA graph cannot contain a wait for other processes with a time limit.
    use_cuda_graphs = config.use_cuda_graphs and executor.sum_over_ranks is None
    runner = executor.run(ModelRunner(model, kv_cache, limits.max_model_len, use_cuda_graphs))
    make_scheduler = config.scheduler_factory or partial(Scheduler, policy=config.policy)
    cache = _cache_factory(target)(num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = make_scheduler(limits, cache)
    engine = Engine(
        runner,
        scheduler,
        vocab_size=target.model_config.vocab_size,
        codec=tokenizer,
        eos_token_ids=eos_token_ids,
        guidance=None if tokenizer is None else _Grammars(tokenizer, eos_token_ids),
        speculator=None if speculation is None else speculation.speculator(kv_cache, limits, use_cuda_graphs),
        seed=config.seed,
        max_trace_steps=config.max_trace_steps,
    )
    return Parts(target.folder, target.model_config, tokenizer, model, kv_cache, runner, scheduler, engine)


def _cache_factory(target: _Target) -> Callable[..., Any]:
    """Makes the cache manager from its number of blocks, their size and whether prefixes are cached."""
    own = target.config.cache_factory
    if own not in (None, CacheManager):
        return own
    tier = _tier(target.config)
    if target.window is None and target.groups is None:
        return partial(CacheManager, tier=tier)
    return partial(feature("windows.resolve").windowed_cache(target.window, target.groups), tier=tier)


def _tier(config: EngineConfig) -> KVTier | None:
    if config.preemption_mode != "swap":
        tier: KVTier | None = config.kv_tier
    else:
        tier = feature("offloading.host_memory").HostMemoryTier(config.num_swap_blocks)
    return tier


@final
class _Grammars:
    """`Guidance`, made when the first request with structured outputs comes. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer, self._eos_token_ids = tokenizer, eos_token_ids
        self._making = threading.Lock()
        self._guidance: Any = None

    def compile(self, params: SamplingParams) -> Any:
        """See `Guidance.compile`."""
        with self._making:
            if self._guidance is None:
                guidance = feature("structured_outputs.guidance")
                self._guidance = guidance.Guidance(self._tokenizer.to_json, self._eos_token_ids)
        return self._guidance.compile(params)
