"""Prefill and decode in processes of their own: prompts never stand in the way of tokens.

(DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677.) Rank 0 is the front end and decodes; every other rank
computes prompts and sends their pages, layer by layer. Each rank has the whole model, an engine and a K/V pool.

For the engine that decodes, the prefill workers are a KV tier (`RemoteTier`). Full blocks travel, and the last token
never does: of each prompt up to block_size tokens are computed on the decode side, and give the first token.

    # script.py, started by `torchrun --nproc-per-node 2 script.py` or by twophase_tools.launch.run_local
    with disaggregated("smollm2-135m-instruct") as llm:
        if llm is not None:  # rank 0; the others serve until its block ends
            print(llm.generate("The capital of France is")[0].outputs[0].text)
"""

import itertools
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from twophase.cache.kv_cache import KVCacheSpec
from twophase.cache.manager import CacheManager
from twophase.config import EngineConfig, configured
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.plan import BlockKey
from twophase.core.request import Request, RequestOutput, SamplingParams
from twophase.engine.engine import uninterrupted
from twophase.engine.metrics import EngineStats
from twophase.engine.request_state import Prompt, RequestState
from twophase.llm import LLM
from twophase.model.config import ModelConfig, load_config
from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model
from twophase_features.pairs import check_pairs
from twophase_features.parallel import _protocol as wire
from twophase_features.parallel._channel import Channel, Inbox, Send
from twophase_features.parallel.peers import (
    DEFAULT_STARTUP_TIMEOUT_S,
    DEFAULT_STEP_TIMEOUT_S,
    PeerLostError,
    Peers,
    place,
)
from twophase_features.parallel.prefill_worker import PrefillWorker
from twophase_features.parallel.remote_tier import RemoteTier

MAX_RECORDS = 10_000  # the newest ones are kept until `take_transfers`
IDLE_S = 0.05  # how long one step may wait for pages when there is nothing to decode; a message ends it at once

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Remote:
    """A request whose pages have not all come.

    Attributes:
        submit: For the worker of this `rank`.
        is_submitted: The tier has room for the blocks, and the worker knows the prompt.
    """

    prepared: RequestState
    submit: wire.Submit
    rank: int
    is_submitted: bool = False


@final
class DecodeEngine:
    """An `Engine` whose prompts are computed by prefill workers; an `LLM` uses it as its own. Not thread-safe.

    A request is sent to a worker when the tier has room for its pages, so prompts that wait fill no memory. When they
    have come, it is queued in the engine like any other, and its admission loads them. Computed here at once are
    prompts that have no page to come (shorter than a block, or known here) or more than the tier can hold, and prompts
    whose log-probabilities are asked for.

    Pages that did not come, because the worker refused the prompt, failed or was lost, are a miss: their tokens are
    computed here, and no token changes. After a loss new requests are refused, with the `PeerLostError`: to compute all
    prompts here would hold up decodes. (vLLM's `kv_load_failure_policy` is this choice: 'recompute', or by default
    'fail', which ends such requests.)

    Metrics are the decode side's: waiting for pages is part of the time until `first_scheduled_s`, and
    `num_cached_tokens` counts tokens found in its prefix cache and its tier. `take_transfers` has the worker's part.

    Attributes:
        lost: Why there is no worker any more.
        num_recomputed: Prompts of which no worker sent all pages, so that tokens were computed here.

    Args:
        llm: The model, with the engine that decodes; `tier` becomes the tier of its cache.
        sends: To the prefill workers, by rank.
        inbox: From them.
        tier: Where their pages go.

    Raises:
        ConfigError: The cache knows no tiers.
    """

    def __init__(self, llm: LLM, sends: Mapping[int, Send], inbox: Inbox, tier: RemoteTier) -> None:
        if not isinstance(llm.scheduler.cache, CacheManager):
            raise ConfigError(
                f"disaggregation loads pages through the KV tier of a CacheManager, and cache_factory made a "
                f"{type(llm.scheduler.cache).__name__}; leave cache_factory out."
            )
        self._engine, self._scheduler = llm.engine, llm.scheduler
        self._cache: CacheManager = llm.scheduler.cache
        self._cache.tier = self._tier = tier
        self._sends, self._inbox = sends, inbox
        self._turns = itertools.cycle(sends)
        self._seeds = random.Random(llm.config.seed)  # drawn in the order of requests, whichever pages come first
        self._remote: dict[str, _Remote] = {}  # in the order of requests
        self._to_load: dict[str, _Remote] = {}  # requests that are in the engine, and expect blocks
        self.num_recomputed = 0
        self._prefills: deque[wire.Done] = deque(maxlen=MAX_RECORDS)
        self._transfers: deque[wire.Transfer] = deque(maxlen=MAX_RECORDS)
        self.lost: PeerLostError | None = None

    # -- what LLM asks of an engine

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> None:
        """As `Engine.add_request`."""
        self.add(self._engine.prepare(request_id, prompt, params, **options))

    @uninterrupted()
    def add(self, prepared: RequestState) -> None:
        """As `Engine.add`.

        Raises:
            InvalidRequestError: It could never be served as asked.
            PeerLostError: There is no prefill worker any more.
        """
        if self.lost is not None:
            raise self.lost
        request, params = prepared.request, prepared.request.sampling_params
        if request.request_id in self._remote:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by an unfinished request.")
        self._scheduler.check(request)
        submit = self._submit_of(request)
        if params.seed is None:
            seeded = replace(params, seed=self._seeds.getrandbits(63))
            prepared.request = replace(request, sampling_params=seeded)
        if submit is None:
            self._engine.add(prepared)
        else:
            self._remote[request.request_id] = _Remote(prepared, submit, next(self._turns))
            self._submit_waiting()

    @uninterrupted()
    def step(self) -> list[RequestOutput]:
        """Hear the messages that came, step the engine, and submit prompts for whose pages the tier has room."""
        is_busy = self._engine.has_unfinished_requests()
        try:
            timeout_s = min(IDLE_S, self._engine.idle_s) if is_busy else IDLE_S if self._remote else 0.0
            for message in self._inbox.messages(timeout_s):
                self._hear(message)
        except PeerLostError as error:
            self._lose(error)
        outputs = self._engine.step()
        ended = {output.request_id for output in outputs if output.finished}
        for request_id, remote in list(self._to_load.items()):
            if request_id in ended or remote.prepared.metrics.first_scheduled_s is not None:
                self._drop(request_id)
        self._submit_waiting()
        return outputs

    @uninterrupted()
    def abort(self, request_id: str) -> RequestOutput | None:
        """As `Engine.abort`."""
        if request_id in self._remote:
            remote = self._remote[request_id]
            if remote.is_submitted:
                self._sends[remote.rank](wire.Cancel(request_id))
            self._queue(request_id)
        output = self._engine.abort(request_id)
        self._drop(request_id)
        return output

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything left to do or to return."""
        return bool(self._remote) or self._engine.has_unfinished_requests()

    def __getattr__(self, name: str) -> Any:
        """Every other attribute of an `Engine` (its trace, its block tables, ...) is the decode side's."""
        return getattr(self._engine, name)

    def stats(self) -> EngineStats:
        """The decode side's; requests whose pages are to come are waiting."""
        stats = self._engine.stats()
        return replace(stats, num_waiting=stats.num_waiting + len(self._remote))

    # -- the workers

    def take_transfers(self) -> tuple[tuple[wire.Transfer, ...], tuple[wire.Done, ...]]:
        """How pages travelled, and how long each prompt took whose pages have come, since the last call."""
        transfers, prefills = tuple(self._transfers), tuple(self._prefills)
        self._transfers.clear()
        self._prefills.clear()
        return transfers, prefills

    def close(self) -> None:
        """Let the workers go."""
        for send in self._sends.values():
            send(wire.Bye())

    def _submit_of(self, request: Request) -> wire.Submit | None:
        """The prompt and the blocks that a worker shall compute and send; None: the prompt is computed here."""
        if request.sampling_params.prompt_logprobs is not None:
            return None
        keys: list[BlockKey] = []  # of all blocks that can be loaded: full ones, the last token is not in them
        table = self._cache.open(request.prompt_token_ids, request.cache_salt, count_in_stats=False, keys=keys)
        num_here = (table.num_cached_tokens + table.num_offered_tokens) // self._cache.block_size
        self._cache.close(table)
        if not 0 < len(keys) - num_here <= self._tier.num_blocks:
            return None
        whole_blocks = request.prompt_token_ids[: len(keys) * self._cache.block_size]
        return wire.Submit(request.request_id, whole_blocks, request.cache_salt, tuple(keys[num_here:]))

    def _submit_waiting(self) -> None:
        """Send prompts to their workers, in the order of requests, as far as the tier has room for their pages."""
        for remote in self._remote.values():
            if not remote.is_submitted:
                if not self._tier.expect(remote.submit.keys):
                    return
                remote.is_submitted = True
                self._sends[remote.rank](remote.submit)

    def _queue(self, request_id: str) -> None:
        """The request waits for no more pages: it goes into the engine, which loads the pages that are here."""
        remote = self._remote.pop(request_id)
        if remote.is_submitted:
            self._to_load[request_id] = remote
        self._engine.add(remote.prepared)

    def _drop(self, request_id: str) -> None:
        """The request has loaded its pages, or has ended."""
        if remote := self._to_load.pop(request_id, None):
            self._tier.drop(remote.submit.keys)

    def _hear(self, message: wire.Message) -> None:
        match message:
            case wire.Pages():
                self._tier.receive(message)
            case wire.Done(request_id, error):
                self._transfers += message.transfers
                if request_id in self._remote:
                    if error is None:
                        self._prefills.append(message)
                    else:
                        logger.warning("the prefill side could not compute request %r: %s", request_id, error)
                        self.num_recomputed += 1
                    self._queue(request_id)

    def _lose(self, error: PeerLostError) -> None:
        """Torch's process group ends with its first lost member, so all workers are lost."""
        self.lost = error
        self.num_recomputed += len(self._remote)
        for request_id in list(self._remote):
            self._queue(request_id)


@contextmanager
def disaggregated(
    model: str | Path = DEFAULT_MODEL,
    *,
    config: EngineConfig | None = None,
    step_timeout_s: int | float = DEFAULT_STEP_TIMEOUT_S,
    startup_timeout_s: int | float = DEFAULT_STARTUP_TIMEOUT_S,
    prefill_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[LLM | None]:
    """Open a model in every process that torchrun started: rank 0 gets an `LLM` that decodes; the others compute its
    prompts until rank 0 leaves the block, and then get None.

    Args:
        config, options: As `LLM`. Options that shape pages (kv_cache_dtype, dtype, block_size) must be the same in all
            ranks; device='auto' is cuda:LOCAL_RANK where there is CUDA.
        step_timeout_s, startup_timeout_s: As `Peers`.
        prefill_options: Options of `LLM` for the prefill side, in the place of rank 0's.

    Raises:
        ConfigError: Not started by torchrun, or with fewer than two processes; ranks that serve different models, or
            pages of different shapes; or as `LLM`.
        PeerLostError: In a prefill rank: rank 0 is gone. In rank 0: a peer did not come.
    """
    rank, local_rank, world_size = place()
    if world_size < 2:
        raise ConfigError(
            "disaggregation takes at least 2 processes, started by `torchrun --nproc-per-node 2 ...` or by "
            "twophase_tools.launch.run_local."
        )
    config = configured(config, options | dict(prefill_options or {}) if rank else options)
    model_config = load_config(resolve_model(str(model)))
    check_pairs(config, also=("disaggregated", *(("mixed",) if model_config.is_mixed else ())))
    if config.cache_factory is None and model_config.sliding_window is not None:
        # The model's own window is a matter of attention alone here: this cache frees nothing before a sequence ends.
        config = replace(config, cache_factory=partial(CacheManager))
    if config.device == "auto" and torch.cuda.is_available():
        config = replace(config, device=f"cuda:{local_rank}")
    # Loading may take longer than a peer may be silent: join when it is done.
    llm = LLM(model, config)
    with Peers(llm.kv_cache.device, step_timeout_s=step_timeout_s, startup_timeout_s=startup_timeout_s) as peers:
        check_same(peers.gather((llm.model_config, llm.kv_cache.spec), "all ranks to load the model"))
        inbox = Inbox()
        if rank:
            channel = Channel(peers, 0, inbox)
            PrefillWorker(llm, channel.send, inbox).serve()
            channel.close()
            yield None
            return
        tier = RemoteTier(llm.kv_cache, behind=getattr(llm.scheduler.cache, "tier", None))
        channels = {worker: Channel(peers, worker, inbox) for worker in range(1, world_size)}
        engine = DecodeEngine(llm, {worker: channel.send for worker, channel in channels.items()}, inbox, tier)
        llm.engine = engine  # type: ignore[assignment]  # it has what an LLM uses of an Engine
        try:
            yield llm
        finally:
            engine.close()
            for channel in channels.values():
                channel.close()


def check_same(ranks: Sequence[tuple[ModelConfig, KVCacheSpec]]) -> None:
    """Raises ConfigError unless all ranks have the model and the pages of rank 0."""
    for rank, found in enumerate(ranks):
        if found != ranks[0]:
            raise ConfigError(
                f"prefill and decode must have the same model, K/V format and block size; rank 0 has {ranks[0][1]}, "
                f"rank {rank} has {found[1]}; start all ranks with the same options."
            )
