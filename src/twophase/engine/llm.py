"""`LLM`: a model folder opened for generation. Names follow vLLM's class of the same name."""

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, final

import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.attention.select import make_backend
from twophase.cache.kv_cache import KVCache, KVCacheSpec, num_blocks_that_fit, spec_from_option
from twophase.cache.manager import CacheManager
from twophase.cache.window import SlidingWindow
from twophase.core.errors import ConfigError, InvalidRequestError, TwophaseError
from twophase.core.outputs import RequestOutput
from twophase.core.rules import items_of, shown
from twophase.core.sampling_params import SamplingParams
from twophase.core.speculative import SpeculativeConfig
from twophase.distributed.peers import DEFAULT_STEP_TIMEOUT_S
from twophase.distributed.tensor_parallel import Team
from twophase.engine.draft_model import DraftModelDrafter, open_draft_model
from twophase.engine.drafters import Drafter, NgramDrafter
from twophase.engine.engine import DEFAULT_TRACE_STEPS, Engine
from twophase.engine.guidance import Guidance
from twophase.engine.interrupts import Uninterrupted
from twophase.engine.prompts import Prompt
from twophase.engine.runner import ModelRunner
from twophase.engine.speculation import Speculator
from twophase.engine.thrift import Thrift
from twophase.engine.window import resolve_window, windowed_cache
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, attention_spec
from twophase.model.load import resolve_dtype
from twophase.model.prepare import DEFAULT_MODEL, resolve_model
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import load_weights
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler

GIB = 1024**3

DEFAULT_MAX_NUM_SEQS = 256
# A prefill chunk delays the decodes beside it: about a second at these sizes on a CPU, a few milliseconds on a GPU.
DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 8192}
# A GPU serves nothing else; a CPU's memory belongs to everyone, and 2 GiB hold 46,000 tokens of the default model.
DEFAULT_KV_MEMORY_FRACTION = {"cpu": 0.25, "cuda": 0.9}
DEFAULT_CPU_KV_BYTES = 2 * GIB
PROGRESS_DELAY_S = 2.0  # short batches need no progress bar

AttentionChoice = str | AttentionBackend | Callable[[AttentionSpec], AttentionBackend]
Message = Mapping[str, Any]


class GenerationError(TwophaseError):
    """A streamed request that ended with an error, which has no text to show it in."""


@final
class LLM:
    """A model, its tokenizer, its cache and an engine, ready for use. Not thread-safe.

    Args:
        model: The built-in default, a local Hugging Face folder, or a hub id.
        device: 'auto' (CUDA where there is one), 'cpu', 'cuda', 'cuda:1', ...
        dtype: 'float32', 'float16', 'bfloat16', or 'auto': float32 on a CPU, the model's own elsewhere.
        attention_backend: 'torch', 'triton', 'auto' (Triton on CUDA, else torch), an `AttentionBackend`, or a
            function that makes one for the model's `AttentionSpec`.
        block_size: Tokens per K/V block, a power of two.
        num_kv_blocks: Blocks in the pool; None takes `kv_memory_fraction` of the memory that is free once the weights
            are loaded, and never more than `max_num_seqs` sequences of `max_model_len` could use.
        kv_memory_fraction: In (0, 1]; None is 0.9 on CUDA, and on a CPU 0.25, at most 2 GiB.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Tokens computed in one step; None is 8192 on CUDA and 512 on a CPU, or as many as it
            takes (`max_num_seqs`, and `max_model_len` without chunked prefill).
        max_model_len: Prompt and output tokens of one sequence; None is the model's own limit.
        enable_prefix_caching: Reuse the K/V of prompt prefixes computed before.
        full_hit: What is recomputed of a prompt that was found to its last block: 'recompute_block', that block, or
            'recompute_token', the last token alone (see `CacheManager`).
        enable_chunked_prefill: Spread long prompts over several steps.
        kv_cache_dtype: 'auto' (the model's), 'float32', 'float16', 'bfloat16', 'int8' or 'fp8_e4m3'.
        sliding_window: Keys that a query sees, itself included; None: the model's own window, if it has one. Blocks
            that no later query sees are freed, so a sequence's memory is bounded whatever its length.
        num_attention_sinks: Besides, the first so many keys stay visible. A model that was not trained with a window
            needs a few (4), or its text falls apart. Positions stay those of the text (see `SlidingWindow`), so
            `max_model_len` limits a sequence as ever.
        seed: For requests that have no seed of their own.
        skip_tokenizer_init: Serve token ids only, for folders without a tokenizer.
        use_cuda_graphs: Replay decode steps as CUDA graphs where that is possible.
        max_trace_steps: Steps kept in `engine.trace`; None keeps all.
        policy: What goes into a step, and in which order (twophase.scheduling.policies); None: `PriorityPolicy`.
        preemption_mode: What becomes of the K/V of a request that must make room: 'recompute' drops them, 'swap' saves
            them in host memory.
        num_swap_blocks: Blocks of host memory for that; None: as many as the pool has.
        admission_watermark: Share of the pool that letting a request in must leave free, in [0, 1).
        speculative_config: Guess tokens ahead and verify several in one step; None: never.
        drafter: Guesses in place of the n-gram lookup: where your own can go. Without a `speculative_config` it gets
            `SpeculativeConfig()`.
        tensor_parallel_size: Processes that share the model, all started by torchrun and all running this line; only
            rank 0 gets beyond it (see twophase.distributed.tensor_parallel). Close the LLM, or use it in a `with`
            block, to let the other processes go.
        peer_timeout_s: How long one of them may be silent in the middle of a step.
        cache_factory, scheduler_factory: Make the cache manager from (num_blocks, block_size, enable_prefix_caching),
            and `full_hit` by name where it is not the default; and the scheduler from (config, cache manager): the
            places where your own can go. A cache of your own frees no blocks outside a window unless it does so by
            itself; an `attention_backend` that is ready-made brings its own window, for which nothing is freed.

    Attributes:
        model_dir: The folder it came from.
        runner: What runs the engine's steps.
        tokenizer: None with `skip_tokenizer_init`.

    Raises:
        ModelFolderError: The model is missing, broken or not supported.
        ConfigError: An option that cannot work.
        BackendUnavailableError: The attention backend asked for cannot run here.
        PeerLostError: One of the processes did not come.
        SystemExit: In the other processes, when rank 0 has closed.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        attention_backend: AttentionChoice = "auto",
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_memory_fraction: float | None = None,
        max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        full_hit: str = "recompute_block",
        enable_chunked_prefill: bool = True,
        kv_cache_dtype: str = "auto",
        sliding_window: int | None = None,
        num_attention_sinks: int = 0,
        seed: int = 0,
        skip_tokenizer_init: bool = False,
        use_cuda_graphs: bool = True,
        max_trace_steps: int | None = DEFAULT_TRACE_STEPS,
        policy: Policy | None = None,
        preemption_mode: str = "recompute",
        num_swap_blocks: int | None = None,
        admission_watermark: int | float = 0.0,
        speculative_config: SpeculativeConfig | None = None,
        drafter: Drafter | None = None,
        tensor_parallel_size: int = 1,
        peer_timeout_s: int | float = DEFAULT_STEP_TIMEOUT_S,
        cache_factory: Callable[..., CacheManager] = CacheManager,
        scheduler_factory: Callable[[SchedulerConfig, CacheManager], Scheduler] | None = None,
    ) -> None:
        # Options first: a wrong one should not cost the loading of weights.
        torch_device = resolve_device(device)
        self.model_dir = resolve_model(str(model))
        self.model_config = load_config(self.model_dir)
        torch_dtype = resolve_dtype(dtype, self.model_config, torch_device)
        team = Team.join(self.model_config, tensor_parallel_size, torch_device, peer_timeout_s)
        torch_device, config = team.device, team.shard.config
        kv_spec = _kv_spec(config, kv_cache_dtype, block_size, torch_dtype)
        limits = scheduler_config(
            self.model_config,
            torch_device,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
        )
        limits = replace(limits, watermark=admission_watermark)
        window = resolve_window(self.model_config, sliding_window, num_attention_sinks, attention_backend)
        _check_pool_options(num_kv_blocks, kv_memory_fraction)
        _check_scheduling_options(policy, scheduler_factory, preemption_mode, num_swap_blocks)
        if drafter is not None:
            speculative_config = _with_own_drafter(speculative_config)
        backend = _backend(attention_backend, config, window, torch_device, torch_dtype, block_size)
        self.tokenizer = None if skip_tokenizer_init else Tokenizer.from_folder(self.model_dir)

        weights = load_weights(self.model_dir, self.model_config, torch_dtype, torch_device, team.shard.cut)
        self.model = LlamaModel(config, weights, backend, limits.max_model_len, team.sum_over_ranks)
        draft, draft_spec = None, None
        if speculative_config is not None and speculative_config.model is not None and team.shard.rank == 0:
            draft, draft_spec = open_draft_model(
                speculative_config.model,
                self.model_config,
                self.tokenizer,
                dtype=dtype,
                device=torch_device,
                attention_backend=attention_backend if isinstance(attention_backend, str) else "auto",
                block_size=block_size,
                max_model_len=limits.max_model_len,
            )
        num_blocks = num_kv_blocks or default_num_blocks(
            kv_spec, torch_device, kv_memory_fraction, limits, window, draft_spec.bytes_per_block if draft_spec else 0
        )
        num_blocks = team.smallest(num_blocks)
        self.kv_cache = KVCache(kv_spec, num_blocks, torch_device)
        if preemption_mode == "swap":
            limits = replace(limits, preemption="swap", num_swap_blocks=num_swap_blocks or num_blocks)
        use_cuda_graphs = use_cuda_graphs and team.peers is None
        runner = team.run(
            ModelRunner(self.model, self.kv_cache, limits.max_model_len, use_cuda_graphs, limits.num_swap_blocks)
        )
        self.runner = runner
        self._close = weakref.finalize(self, runner.close)  # at the latest when the interpreter ends
        make_cache = windowed_cache(window) if cache_factory is CacheManager else cache_factory
        if full_hit != "recompute_block":
            make_cache = partial(make_cache, full_hit=full_hit)
        cache = make_cache(num_blocks, block_size, enable_prefix_caching)
        make_scheduler = scheduler_factory or partial(Scheduler, policy=policy)
        self.scheduler = make_scheduler(limits, cache)
        eos_token_ids = self.model_config.eos_token_ids
        if draft is not None and draft_spec is not None:
            draft_cache = KVCache(draft_spec, num_blocks, torch_device)
            drafter = DraftModelDrafter(
                ModelRunner(draft, draft_cache, limits.max_model_len, use_cuda_graphs), limits.max_num_batched_tokens
            )
        self.engine = Engine(
            runner,
            self.scheduler,
            vocab_size=self.model_config.vocab_size,
            codec=self.tokenizer,
            eos_token_ids=eos_token_ids,
            guidance=None if self.tokenizer is None else Guidance(self.tokenizer.to_json, eos_token_ids),
            speculator=None if speculative_config is None else _speculator(speculative_config, drafter),
            seed=seed,
            max_trace_steps=max_trace_steps,
        )
        self._ids = itertools.count()
        self._latest: dict[str, RequestOutput | None] = {}  # of the requests that someone is waiting for

    def close(self) -> None:
        """Let the other processes of a tensor-parallel model go; requests fail from then on. May be called again."""
        self._close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; outputs are in the order of the prompts.

        On any exception, Ctrl-C included, these requests are aborted and the engine can be used again. A request that
        fails while it runs raises nothing: its finish reason is 'error'.

        Args:
            prompts: Text, {"prompt": ...} or {"prompt_token_ids": [...]}, one or several; a mapping may also have a
                "cache_salt": prefixes are shared only with requests of the same one.
            sampling_params: For all of them, or one for each.
            use_tqdm: Show a progress bar when it takes longer than two seconds.

        Raises:
            InvalidRequestError: One of the requests could never be served; none is run.
        """
        several = _listed("prompts", prompts, (str, Mapping))
        params: list[Any] = [None] * len(several)
        if sampling_params is not None:
            params = _listed("sampling_params", sampling_params, SamplingParams)
            params *= len(several) if isinstance(sampling_params, SamplingParams) else 1
        if len(params) != len(several):
            raise InvalidRequestError(
                f"sampling_params must be one for all prompts or one for each, got {len(params)} for {len(several)}."
            )
        request_ids = [self._new_id() for _ in several]
        try:
            for request_id, prompt, each in zip(request_ids, several, params, strict=True):
                self.engine.add_request(request_id, prompt, each, stream=False)
            return self._wait_for(request_ids, use_tqdm)
        finally:
            self._forget(request_ids)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: `generate` on what the model's chat template makes of them.

        Args:
            messages: [{"role": "user", "content": "..."}, ...], or a list of such lists.

        Raises:
            InvalidRequestError: There is no tokenizer or no chat template; or as `generate`.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs the model's tokenizer, but skip_tokenizer_init=True left it out.")
        conversations = _listed("messages", messages)
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]
        prompts = [{"prompt_token_ids": self.tokenizer.apply_chat_template(each)} for each in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Continue one prompt, yielding the text piece by piece; joined, the pieces are `generate`'s text.

        The request is made when the first piece is asked for, and aborted when the iterator is closed early. Several
        streams may be read in turns.

        Raises:
            InvalidRequestError: As `generate`; or more than one completion is asked for.
            GenerationError: The request failed while it ran.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        if isinstance(params, SamplingParams) and params.n != 1:
            raise InvalidRequestError(f"a stream has one completion, so n must be 1, got {params.n}; use generate.")
        request_id = self._new_id()
        num_shown = 0
        try:
            self.engine.add_request(request_id, prompt, params)
            while True:
                output = self._latest[request_id]
                if output is not None:
                    completion = output.outputs[0]
                    if len(completion.text) > num_shown:
                        yield completion.text[num_shown:]
                        num_shown = len(completion.text)
                    if completion.finish_reason == "error":
                        raise GenerationError(f"the request failed: {completion.error}")
                    if output.finished:
                        return
                self._step()
        finally:
            self._forget([request_id])

    def _new_id(self) -> str:
        request_id = str(next(self._ids))
        self._latest[request_id] = None
        return request_id

    def _step(self) -> None:
        # Outputs are cumulative, so the latest is enough, and whoever steps may step for all.
        for output in self.engine.step():
            if output.request_id in self._latest:
                self._latest[output.request_id] = output
        if self.engine.idle_s:
            time.sleep(self.engine.idle_s)

    def _wait_for(self, request_ids: Sequence[str], use_tqdm: bool) -> list[RequestOutput]:
        from tqdm import tqdm

        num_tokens = 0
        waiting = set(request_ids)
        with tqdm(
            total=len(request_ids), unit="req", delay=PROGRESS_DELAY_S, mininterval=0.5, disable=not use_tqdm
        ) as bar:
            while waiting:
                self._step()
                ended = [output for id_ in waiting if (output := self._latest[id_]) is not None and output.finished]
                waiting -= {output.request_id for output in ended}
                num_tokens += sum(len(completion.token_ids) for output in ended for completion in output.outputs)
                bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
                bar.update(len(ended))
        return [output for id_ in request_ids if (output := self._latest[id_]) is not None]

    def _forget(self, request_ids: Sequence[str]) -> None:
        with Uninterrupted():
            for request_id in request_ids:
                self.engine.abort(request_id)
                self._latest.pop(request_id, None)


def _listed(name: str, value: Any, one: type | tuple[type, ...] = ()) -> list[Any]:
    """One or several, as a list. Raises InvalidRequestError for what cannot be listed."""
    if isinstance(value, one):
        return [value]
    try:
        return list(items_of(value))
    except TypeError as error:
        raise InvalidRequestError(f"{name} must be one or a list of several, got {shown(value)}.") from error


def resolve_device(option: str | torch.device) -> torch.device:
    """The device for a user's option; 'auto' is CUDA where there is one.

    Raises:
        ConfigError: No such device, or not one that this engine runs on.
    """
    if option == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(option)
    except RuntimeError as error:
        raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {option!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"the engine runs on 'cpu' and 'cuda', got device {option!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {str(option)!r} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices here; "
            f"use device='cpu', or run `twophase doctor` to see why."
        )
    return device


def scheduler_config(
    config: ModelConfig,
    device: torch.device,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    enable_chunked_prefill: bool,
) -> SchedulerConfig:
    """The scheduler's limits, with defaults for what is None.

    Raises:
        ConfigError: A limit that cannot work, or more tokens than the model has positions.
    """
    longest = config.max_position_embeddings
    if max_model_len is None:
        max_model_len = longest
    if not 2 <= max_model_len <= longest:
        raise ConfigError(
            f"max_model_len must leave room for a prompt and an output token and not exceed the model's "
            f"max_position_embeddings, so be in [2, {longest}], got {max_model_len}."
        )
    if max_num_batched_tokens is None:
        at_least = max_num_seqs if enable_chunked_prefill else max(max_num_seqs, max_model_len)
        max_num_batched_tokens = max(DEFAULT_BATCHED_TOKENS[device.type], at_least)
    return SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, enable_chunked_prefill)


def default_num_blocks(
    spec: KVCacheSpec,
    device: torch.device,
    fraction: float | None,
    limits: SchedulerConfig,
    window: SlidingWindow | None = None,
    draft_bytes_per_block: int = 0,
) -> int:
    """Blocks in a pool that nobody sized: a fraction of free memory, and no more than could ever be used.

    With a window that is what each sequence keeps, and a step's tokens, which are written before blocks are freed.

    Args:
        draft_bytes_per_block: What a draft model's cache takes besides.
    """
    useful = limits.max_num_seqs * -(-limits.max_model_len // spec.block_size)
    if window is not None:
        kept = limits.max_num_seqs * window.max_blocks(spec.block_size)
        useful = min(useful, kept + -(-limits.max_num_batched_tokens // spec.block_size))
    fitting = num_blocks_that_fit(spec, device, fraction or DEFAULT_KV_MEMORY_FRACTION[device.type])
    if fraction is None and device.type == "cpu":
        fitting = min(fitting, max(1, DEFAULT_CPU_KV_BYTES // spec.bytes_per_block))
    fitting = max(1, fitting * spec.bytes_per_block // (spec.bytes_per_block + draft_bytes_per_block))
    return min(useful, fitting)


def _with_own_drafter(config: SpeculativeConfig | None) -> SpeculativeConfig:
    if config is not None and config.model is not None:
        raise ConfigError(
            f"drafter and the draft model {config.model!r} of speculative_config both guess; give one of them."
        )
    return config or SpeculativeConfig()


def _speculator(config: SpeculativeConfig, drafter: Drafter | None) -> Speculator:
    drafter = drafter or NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)
    return Speculator(drafter, config.num_speculative_tokens, Thrift() if config.disable_when_losing else None)


def _check_pool_options(num_kv_blocks: int | None, kv_memory_fraction: float | None) -> None:
    if num_kv_blocks is not None and num_kv_blocks < 1:
        raise ConfigError(f"num_kv_blocks must be at least 1, got {num_kv_blocks}.")
    if num_kv_blocks is not None and kv_memory_fraction is not None:
        raise ConfigError("num_kv_blocks and kv_memory_fraction both size the pool; give one of them.")
    if kv_memory_fraction is not None and not 0 < kv_memory_fraction <= 1:
        raise ConfigError(f"kv_memory_fraction must be in (0, 1], got {kv_memory_fraction}.")


def _check_scheduling_options(
    policy: Policy | None, scheduler_factory: Any, preemption_mode: str, num_swap_blocks: int | None
) -> None:
    if policy is not None and scheduler_factory is not None:
        raise ConfigError("policy and scheduler_factory both decide how requests are scheduled; give one of them.")
    if preemption_mode not in ("recompute", "swap"):
        raise ConfigError(f"preemption_mode must be 'recompute' or 'swap', got {preemption_mode!r}.")
    if num_swap_blocks is not None and (preemption_mode != "swap" or num_swap_blocks < 1):
        raise ConfigError(
            f"num_swap_blocks sizes the host memory of preemption_mode='swap' and must be at least 1; got "
            f"{num_swap_blocks} with preemption_mode={preemption_mode!r}."
        )


def _kv_spec(config: ModelConfig, kv_cache_dtype: str, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
    return spec_from_option(
        kv_cache_dtype,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        model_dtype=dtype,
    )


def _backend(
    choice: AttentionChoice,
    config: ModelConfig,
    window: SlidingWindow | None,
    device: torch.device,
    dtype: torch.dtype,
    block_size: int,
) -> AttentionBackend:
    if isinstance(choice, AttentionBackend):
        return choice
    spec = attention_spec(config)
    if window is not None:
        spec = replace(spec, window=window.window, num_sinks=window.num_sinks)
    if isinstance(choice, str):
        return make_backend(choice, spec, device=device, dtype=dtype, block_size=block_size)
    return choice(spec)
