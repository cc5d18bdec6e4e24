"""Where an engine is put together, and nowhere else: check options, check pairs, join ranks, load, size, build."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.attention.select import make_backend
from twophase.cache.kv_cache import KVCache, KVCacheSpec, spec_from_option
from twophase.cache.manager import CacheManager
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.engine._context import plain_context
from twophase.engine.drafter import Drafter
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner, Runner
from twophase.model.config import ModelConfig, load_config
from twophase.model.device_and_dtype import resolve_device, resolve_dtype
from twophase.model.llama import LlamaModel, layer_groups, model_backend
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import has_quantized_weights, load_weights
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler
from twophase.sizing import check_rope_tables, default_num_blocks, limits_of, step_bytes, with_swap_space
from twophase_features.model_store.prepare import resolve_model
from twophase_features.pairs import check_pairs
from twophase_features.parallel.tensor_parallel import TensorParallelGroup
from twophase_features.quantization.schemes import SCHEMES
from twophase_features.speculation.draft_model import DraftModelDrafter, open_draft_model
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import Speculator
from twophase_features.structured_outputs.guidance import Guidance
from twophase_features.windows.layer_groups import LayerGroups
from twophase_features.windows.resolve import resolve_window, windowed_cache
from twophase_features.windows.sliding_window import SlidingWindow


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """An engine and what it is made of; `LLM` says what each is."""

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
    """Open a model and build an engine around it. Everything that can be refused is, before a weight is read.

    Raises:
        ModelFolderError, ConfigError, BackendUnavailableError, PeerLostError, SystemExit: See `LLM`.
    """
    target = _check(model, config)
    group = TensorParallelGroup.join(
        target.model_config,
        config.tensor_parallel_size,
        target.device,
        config.peer_timeout_s,
        config.enable_expert_parallel,
    )
    target = replace(target, device=group.device)
    loaded = _load(target, config, group)
    num_blocks = group.smallest(_num_blocks(target, config, group, loaded))
    return _build(target, config, group, loaded, num_blocks)


# -- check


@dataclass(frozen=True, slots=True)
class _Target:
    """What is to be opened, with every 'auto' resolved.

    Attributes:
        model_config: Of the whole model.
        window: What queries see; of a mixed model, those of its sliding layers.
        groups: The layers of a mixed model.
        spec: Of the whole model's cache.
    """

    folder: Path
    model_config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    limits: SchedulerConfig
    window: SlidingWindow | None
    groups: LayerGroups | None
    spec: KVCacheSpec


def _check(model: str, config: EngineConfig) -> _Target:
    """Every option by itself, then in pairs, with what the model's folder says of itself."""
    device = resolve_device(config.device)
    folder = resolve_model(model)
    model_config = load_config(folder)
    is_stored_quantized = has_quantized_weights(folder, model_config)
    if is_stored_quantized and config.quantization is not None:
        raise ConfigError(
            f"quantization={config.quantization!r} rounds plain weights, and those of {folder} are quantised already: "
            f"leave it out."
        )
    is_quantized = is_stored_quantized or config.quantization is not None
    dtype = resolve_dtype(config.dtype, model_config, device, is_quantized)
    is_mixed = model_config.is_mixed
    check_pairs(config, also=("mixed",) if is_mixed else ())
    if is_mixed and config.cache_factory not in (None, CacheManager):
        raise ConfigError(
            "cache_factory makes a cache for layers of one kind, and this model has some that see all keys and some "
            "that see a window: leave it out."
        )
    window = resolve_window(model_config, config.sliding_window, config.num_attention_sinks, config.attention_backend)
    limits = limits_of(config, model_config, device)
    check_rope_tables(model_config, limits.max_model_len)
    groups, spec = layer_groups(model_config), _kv_spec(model_config, config, dtype)
    return _Target(folder, model_config, device, dtype, limits, window, groups, spec)


def _kv_spec(model: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> KVCacheSpec:
    groups = layer_groups(model)
    return spec_from_option(
        config.kv_cache_dtype,
        num_layers=model.num_layers if groups is None else groups.size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        model_dtype=dtype,
    )


# -- load


class _Draft(NamedTuple):
    """A draft model, what its cache stores, and what its queries see."""

    model: LlamaModel
    spec: KVCacheSpec
    window: SlidingWindow | None


class _Loaded(NamedTuple):
    model: LlamaModel
    tokenizer: Tokenizer | None
    draft: _Draft | None


def _load(target: _Target, config: EngineConfig, group: TensorParallelGroup) -> _Loaded:
    """This rank's part of the weights, and the whole of the small things."""
    shard = group.shard
    backend = _backend(target, config, shard.config)
    tokenizer = None if config.skip_tokenizer_init else Tokenizer.from_folder(target.folder)
    scheme = None if config.quantization is None else SCHEMES[config.quantization]
    weights = load_weights(
        target.folder, target.model_config, target.dtype, target.device, shard.cut, shard.experts, scheme
    )
    model = LlamaModel(
        shard.config, weights, backend, target.limits.max_model_len, group.sum_over_ranks, group.dispatch_experts
    )
    draft = None
    if config.draft_model is not None and group.is_driver:
        draft = _load_draft(config.draft_model, target, config, tokenizer)
    return _Loaded(model, tokenizer, draft)


def _backend(target: _Target, config: EngineConfig, shard: ModelConfig) -> AttentionBackend:
    choice = config.attention_backend
    if isinstance(choice, AttentionBackend):
        return choice

    def make(spec: AttentionSpec) -> AttentionBackend:
        if target.window is not None and not shard.is_mixed:
            spec = replace(spec, window=target.window.window, num_sinks=target.window.num_sinks)
        if isinstance(choice, str):
            return make_backend(choice, spec, device=target.device, dtype=target.dtype, block_size=config.block_size)
        backend: AttentionBackend = choice(spec)
        return backend

    return model_backend(shard, make)


def _load_draft(name: str, target: _Target, config: EngineConfig, tokenizer: Tokenizer | None) -> _Draft:
    return _Draft(
        *open_draft_model(
            name,
            target.model_config,
            tokenizer,
            dtype=config.dtype,
            device=target.device,
            attention_backend=config.attention_backend if isinstance(config.attention_backend, str) else "auto",
            block_size=config.block_size,
            max_model_len=target.limits.max_model_len,
            window=target.window,
        )
    )


# -- size


def _num_blocks(target: _Target, config: EngineConfig, group: TensorParallelGroup, loaded: _Loaded) -> int:
    """Blocks in this rank's pool, once its weights are loaded."""
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    is_on_gpu = target.device.type == "cuda"
    return default_num_blocks(
        _kv_spec(group.shard.config, config, target.dtype),
        target.device,
        config.kv_memory_fraction,
        target.limits,
        target.window,
        0 if loaded.draft is None else loaded.draft.spec.bytes_per_block,
        step_bytes(group.shard.config, target.limits, target.dtype) if is_on_gpu else 0,
        (False,) if target.groups is None else target.groups.sees_all,
    )


# -- build


def _build(
    target: _Target, config: EngineConfig, group: TensorParallelGroup, loaded: _Loaded, num_blocks: int
) -> Parts:
    """The cache, the runner, the scheduler and the engine. On other ranks than 0: serve, and exit."""
    spec = _kv_spec(group.shard.config, config, target.dtype)
    limits = with_swap_space(target.limits, config, spec, num_blocks)
    kv_cache = KVCache(spec, num_blocks, target.device, groups=target.groups)
    use_cuda_graphs = config.use_cuda_graphs and group.peers is None
    runner = group.run(
        ModelRunner(loaded.model, kv_cache, limits.max_model_len, use_cuda_graphs, limits.num_swap_blocks)
    )
    make_scheduler = config.scheduler_factory or partial(Scheduler, policy=config.policy)
    scheduler = make_scheduler(limits, _cache_factory(config, target)(num_blocks))
    eos_token_ids = target.model_config.eos_token_ids
    tokenizer = loaded.tokenizer
    engine = Engine(
        runner,
        scheduler,
        vocab_size=target.model_config.vocab_size,
        codec=tokenizer,
        eos_token_ids=eos_token_ids,
        guidance=None if tokenizer is None else Guidance(tokenizer.to_json, eos_token_ids),
        speculator=_speculator(config, loaded.draft, limits, kv_cache, use_cuda_graphs),
        seed=config.seed,
        max_trace_steps=config.max_trace_steps,
    )
    return Parts(target.folder, target.model_config, tokenizer, loaded.model, kv_cache, runner, scheduler, engine)


def _cache_factory(config: EngineConfig, target: _Target) -> Callable[[int], Any]:
    """Makes the cache manager from its number of blocks."""
    make = config.cache_factory
    if make in (None, CacheManager):
        make = windowed_cache(target.window, target.groups)
    return lambda num_blocks: make(num_blocks, config.block_size, config.enable_prefix_caching)


def _speculator(
    config: EngineConfig, draft: _Draft | None, limits: SchedulerConfig, kv_cache: KVCache, use_cuda_graphs: bool
) -> Speculator | None:
    asked_for = config.speculation
    if asked_for is None:
        return None
    drafter: Drafter
    if draft is not None:
        draft_cache = KVCache(draft.spec, kv_cache.num_blocks, kv_cache.device)
        draft_runner = ModelRunner(draft.model, draft_cache, limits.max_model_len, use_cuda_graphs)
        drafter = DraftModelDrafter(draft_runner, limits.max_num_batched_tokens, draft.window)
    else:
        drafter = config.drafter or NgramDrafter(asked_for.prompt_lookup_min, asked_for.prompt_lookup_max)
    return Speculator(
        drafter, asked_for.num_speculative_tokens, SpeculationGate() if asked_for.disable_when_losing else None
    )
