"""Prefill and decode in processes of their own: prompts never stand in the way of tokens.

(DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677.) Rank 0 is the front end and decodes; every other rank
computes prompts and sends their pages, layer by layer, into blocks reserved here. Each rank has the whole model, an
engine and a K/V pool.

    # script.py, started by `torchrun --nproc-per-node 2 script.py` or by twophase_features.parallel.launch.run_local
    with disaggregated("smollm2-135m-instruct") as llm:
        if llm is not None:  # rank 0; the others serve until its block ends
            print(llm.generate("The capital of France is")[0].outputs[0].text)
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from twophase.cache.manager import CacheManager
from twophase.config import EngineConfig, configured
from twophase.core.errors import ConfigError, InvalidRequestError, PeerLostError
from twophase.core.outputs import RequestOutput, StepTrace
from twophase.core.request import Request
from twophase.core.sampling_params import SamplingParams
from twophase.engine.engine import Engine
from twophase.engine.metrics import EngineStats
from twophase.engine.prompts import Prompt
from twophase.llm import LLM
from twophase.model.config import load_config
from twophase.scheduling.request_validation import check_request
from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model
from twophase_features.pairs import check_pairs
from twophase_features.parallel._channel import Channel, Inbox, Link
from twophase_features.parallel._protocol import (
    AskTransfers,
    Bye,
    Cancel,
    Done,
    Failed,
    Grant,
    Hello,
    Message,
    Received,
    Submit,
    Transfers,
)
from twophase_features.parallel._transfers import TransferRecord
from twophase_features.parallel.pages import KVReceiver
from twophase_features.parallel.peers import DEFAULT_STARTUP_TIMEOUT_S, DEFAULT_STEP_TIMEOUT_S, Peers, place
from twophase_features.parallel.prefill_worker import MAX_TRANSFERS, PrefillWorker

MAX_RESENDS = 1  # of a prompt's pages; when some are missing again, the prompt is computed here
IDLE_S = 0.05  # how long one step may wait for pages when there is nothing to decode; a message ends it at once


@dataclass(slots=True)
class Recoveries:
    """What became of transfers that failed. Only the `DecodeEngine` changes it.

    Attributes:
        num_resent: Prompts of which pages were sent again; twice is counted twice.
        num_recomputed: Prompts that were computed on the decode side in the end.
    """

    num_resent: int = 0
    num_recomputed: int = 0


@final
class DecodeEngine:
    """An `Engine` whose prompts are computed by prefill workers; an `LLM` uses it as its own. Not thread-safe.

    A transfer that fails is recovered, and the tokens are those that would have come without it. Pages that are
    missing when all have been sent are sent once more, from the first missing block on. If that fails too, or the
    worker is lost, the prompt is computed here, as an engine alone would; the blocks reserved for it are freed.
    After a loss new requests are refused, with the `PeerLostError`: there is nobody to compute their prompts, and
    computing all of them here would hold up every decode. (vLLM's `kv_load_failure_policy` is this choice: 'recompute',
    or by default 'fail', which ends such requests.)

    Attributes:
        lost: Why there is no worker any more.
        recoveries: What became of transfers that failed.

    Args:
        llm: The model, with the engine that decodes.
        links: To the prefill workers, by rank.
        inbox: From them.
        receiver: Writes their pages into `llm`'s cache.

    Raises:
        ConfigError: A worker serves something else, or pages of another shape.
        PeerLostError: A worker did not come.
    """

    def __init__(self, llm: LLM, links: Mapping[int, Link], inbox: Inbox, receiver: KVReceiver) -> None:
        self._engine: Engine = llm.engine
        self.prepare = self._engine.prepare
        self._scheduler = llm.scheduler
        self._links = links
        self._inbox = inbox
        self._receiver = receiver
        self._turns = itertools.cycle(links)
        self._rank_of: dict[str, int] = {}  # of requests whose pages are not all here
        self._num_resends: Counter[str] = Counter()  # of those
        self.recoveries = Recoveries()
        self._prefills: deque[Done] = deque(maxlen=MAX_TRANSFERS)
        self._answers: list[Transfers] = []
        self._has_computed = False  # in the latest step
        self.lost: PeerLostError | None = None
        self._workers = self._meet(llm)

    def _meet(self, llm: LLM) -> dict[int, Hello]:
        workers: dict[int, Hello] = {}
        while len(workers) < len(self._links):
            item = self._inbox.take(IDLE_S)
            if item is not None:
                rank, hello = item
                assert isinstance(hello, Hello)
                if (hello.model, hello.spec) != (llm.model_config, llm.kv_cache.spec):
                    raise ConfigError(
                        f"prefill and decode must have the same model, K/V format and block size; rank 0 has "
                        f"{llm.kv_cache.spec}, rank {rank} has {hello.spec}; start all ranks with the same options."
                    )
                workers[rank] = hello
        return workers

    # -- what LLM asks of an engine

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        arrival_s: int | float | None = None,
        stream: bool = True,
    ) -> None:
        """As `Engine.add_request`; served in the order of arrival.

        Raises:
            InvalidRequestError: It could never be served as asked, here or by the prefill worker.
            PeerLostError: There is no prefill worker any more.
        """
        if self.lost is not None:
            raise self.lost
        self._engine.add_request(
            request_id,
            prompt,
            params,
            cache_salt=cache_salt,
            arrival_s=arrival_s,
            stream=stream,
            is_prefilled_elsewhere=True,
        )
        state = self._engine.state_of(request_id)
        rank = next(self._turns)
        try:
            self._check_prefill(rank, state.request)
        except InvalidRequestError:
            self._engine.abort(request_id)
            raise
        self._rank_of[request_id] = rank
        seeded = replace(state.request.sampling_params, seed=state.seed)
        reserved = self._reserve()
        first_block = reserved.pop(request_id, None)
        # The request's own salt: it may have come inside of the prompt.
        salt = state.request.cache_salt
        self._links[rank].send(Submit(request_id, state.request.prompt_token_ids, seeded, salt, first_block))
        self._grant(reserved)

    def step(self) -> list[RequestOutput]:
        """Take in what has come, reserve blocks for what shall come, and decode one token of each running sequence."""
        try:
            self._listen(0.0 if self._has_computed or not self._rank_of else min(IDLE_S, self._engine.idle_s or IDLE_S))
        except PeerLostError as error:
            self._lose(error)
        self._grant(self._reserve())
        num_steps = self._engine.stats().num_steps
        outputs = self._engine.step()
        self._has_computed = self._engine.stats().num_steps > num_steps
        for output in outputs:
            if output.finished:
                self._cancel(output.request_id)
        return outputs

    def abort(self, request_id: str) -> RequestOutput | None:
        """As `Engine.abort`."""
        self._cancel(request_id)
        return self._engine.abort(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything left to do or to return."""
        return self._engine.has_unfinished_requests()

    @property
    def idle_s(self) -> float:
        """See `Engine.idle_s`."""
        return self._engine.idle_s

    @property
    def trace(self) -> tuple[StepTrace, ...]:
        """The decode side's steps."""
        return self._engine.trace

    def stats(self) -> EngineStats:
        """Of the decode side."""
        return self._engine.stats()

    def block_tables(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """As `Engine.block_tables`, of the decode side."""
        return self._engine.block_tables()

    # -- the workers

    def take_transfers(self) -> tuple[tuple[TransferRecord, ...], tuple[Done, ...]]:
        """How pages travelled, and how long each adopted prompt took, since the last call. Waits for the workers.

        Raises:
            PeerLostError: There is no worker any more.
        """
        for link in self._links.values():
            link.send(AskTransfers())
        while len(self._answers) < len(self._links):
            if self.lost is not None:
                raise self.lost
            self._listen(IDLE_S)
        answers, self._answers = self._answers, []
        prefills = tuple(self._prefills)
        self._prefills.clear()
        return tuple(record for answer in answers for record in answer.records), prefills

    def close(self) -> None:
        """Let the workers go."""
        for link in self._links.values():
            link.send(Bye())

    def _check_prefill(self, rank: int, request: Request) -> None:
        """The worker's validation, which is done here, so that a refusal is an exception."""
        worker = self._workers[rank]
        prompt = replace(request, sampling_params=replace(request.sampling_params, max_tokens=1))
        try:
            check_request(prompt, worker.limits, CacheManager(worker.num_blocks, worker.spec.block_size))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"the prefill side (rank {rank}) refuses: {error}") from error

    def _reserve(self) -> dict[str, int]:
        """Blocks for prompts, as far as there is room: the first block that has to come, by request id."""
        reservations = self._engine.reserve()
        block_size = self._scheduler.cache.block_size
        first_blocks = {each.request_id: each.num_cached_tokens // block_size for each in reservations}
        for each in reservations:
            self._receiver.expect(each.request_id, each.block_ids, first_blocks[each.request_id])
        return first_blocks

    def _grant(self, first_blocks: Mapping[str, int]) -> None:
        for request_id, first_block in first_blocks.items():
            self._links[self._rank_of[request_id]].send(Grant(request_id, first_block))

    def _cancel(self, request_id: str) -> None:
        """If it is being computed elsewhere: not any more."""
        if request_id in self._rank_of:
            self._links[self._rank_of[request_id]].send(Cancel(request_id))
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        """No pages are waited for any more."""
        del self._rank_of[request_id], self._num_resends[request_id]
        self._receiver.forget(request_id)  # before its blocks are another's

    def _listen(self, timeout_s: int | float) -> None:
        item = self._inbox.take(timeout_s)
        while item is not None:
            self._hear(item[1])
            item = self._inbox.take(0.0)

    def _hear(self, message: Message) -> None:
        match message:
            case Done(request_id) if request_id in self._rank_of:
                self._adopt(message)
            case Failed(request_id, error) if request_id in self._rank_of:
                self._fail(request_id, error)
            case Transfers():
                self._answers.append(message)

    def _adopt(self, done: Done) -> None:
        """The receiving thread hands on a message only when it is through with all pages before it."""
        first_missing = self._receiver.first_missing(done.request_id)
        if first_missing is not None:
            self._recover(done.request_id, first_missing)
            return
        self._links[self._rank_of[done.request_id]].send(Received(done.request_id))
        self._forget(done.request_id)
        state = self._engine.state_of(done.request_id)
        self._prefills.append(done)
        first_scheduled_s = state.request.arrival_s + done.queue_s
        self._engine.adopt(
            done.request_id, done.tokens, first_scheduled_s, done.num_cached_tokens, done.prompt_logprobs
        )

    def _recover(self, request_id: str, first_missing: int) -> None:
        """The worker keeps a prompt's blocks until it hears that all are here: a new grant makes it send them again."""
        if self._num_resends[request_id] < MAX_RESENDS:
            self._num_resends[request_id] += 1
            self.recoveries.num_resent += 1
            self._grant({request_id: first_missing})
        else:
            self._links[self._rank_of[request_id]].send(Cancel(request_id))
            self._compute_here(request_id)

    def _compute_here(self, request_id: str) -> None:
        self._forget(request_id)
        self._engine.compute_here(request_id)
        self.recoveries.num_recomputed += 1

    def _fail(self, request_id: str, error: str) -> None:
        self._forget(request_id)
        self._engine.fail_request(request_id, error)

    def _lose(self, error: PeerLostError) -> None:
        """Torch's process group ends with its first lost member, so all workers are lost."""
        self.lost = error
        for request_id in list(self._rank_of):
            self._compute_here(request_id)


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
        config, options: As `LLM`. What shapes pages (kv_cache_dtype, dtype, block_size) must be the same in all ranks;
            device='auto' is cuda:LOCAL_RANK where there is CUDA.
        step_timeout_s: How long a silent peer is waited for.
        startup_timeout_s: How long the others may take to load the model.
        prefill_options: Options of `LLM` for the prefill side, in the place of rank 0's.

    Raises:
        ConfigError: Not started by torchrun, or with fewer than two processes; or as `LLM`.
        PeerLostError: In a prefill rank: rank 0 is gone. In rank 0: a peer did not come. (One that is lost later does
            not end the block, and no request that it had; see `DecodeEngine`.)
    """
    rank, local_rank, world_size = place()
    if world_size < 2:
        raise ConfigError(
            "disaggregation takes at least 2 processes, started by `torchrun --nproc-per-node 2 ...` or by "
            "twophase_features.parallel.launch.run_local."
        )
    config = configured(config, options | dict(prefill_options or {}) if rank else options)
    is_mixed = load_config(resolve_model(str(model))).is_mixed
    check_pairs(config, also=("disaggregated", *(("mixed",) if is_mixed else ())))
    if config.cache_factory is None:
        # A model's own window is a matter of attention alone here: this cache frees nothing before a sequence ends.
        config = replace(config, cache_factory=partial(CacheManager))
    if config.device == "auto" and torch.cuda.is_available():
        config = replace(config, device=f"cuda:{local_rank}")
    # Loading may take longer than a peer may be silent: join when it is done.
    llm = LLM(model, config)
    with Peers.join(llm.kv_cache.device, step_timeout_s=step_timeout_s, startup_timeout_s=startup_timeout_s) as peers:
        yield from _serve(llm, peers) if rank else _lead(llm, peers)


def _serve(llm: LLM, peers: Peers) -> Iterator[None]:
    inbox = Inbox()
    channel = Channel(peers, 0, inbox)
    PrefillWorker(llm, channel, inbox).serve()
    channel.close()
    yield None


def _lead(llm: LLM, peers: Peers) -> Iterator[LLM]:
    inbox, receiver = Inbox(), KVReceiver(llm.kv_cache)
    channels = {rank: Channel(peers, rank, inbox, receiver) for rank in range(1, peers.world_size)}
    engine = DecodeEngine(llm, channels, inbox, receiver)
    llm.engine = engine  # type: ignore[assignment]  # it has what an LLM uses of an Engine
    try:
        yield llm
    finally:
        engine.close()
        for channel in channels.values():
            channel.close()
