"""The prefill side: computes prompts and first tokens, and sends pages while the next layers are computed.

What a run sends: of each prompt in it that has a grant, the blocks that the run fills, and those filled before and not
sent yet. A prompt without a grant is computed all the same; its blocks are held, and sent when the grant comes. So when
the decode side is full, finished prompts hold blocks here until no new one is let in: that is the back-pressure.

It cannot deadlock: prompts are computed in the order in which they came, and grants come in that order. A prompt
with blocks reserved on the decode side has its blocks here, or is the first to get some.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from twophase.cache.allocator import KVTable
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.outputs import CompletionOutput, RequestOutput
from twophase.core.plan import SampledToken, ScheduledChunk
from twophase.engine.runner import ModelRunner
from twophase.llm import LLM
from twophase_features.parallel._channel import Inbox, Link
from twophase_features.parallel._protocol import (
    AskTransfers,
    Bye,
    Cancel,
    Done,
    Failed,
    Grant,
    Hello,
    Message,
    PageRange,
    Pages,
    Received,
    Submit,
    Transfers,
)
from twophase_features.parallel._transfers import TransferClock
from twophase_features.parallel.pages import layer_bytes, pack_layer

MAX_TRANSFERS = 10_000  # the newest ones are kept until they are asked for
IDLE_S = 1.0  # how long one look into an empty inbox may take; a message ends it at once


@dataclass(slots=True)
class Outgoing:
    """A prompt on its way out. Only the worker changes it.

    Attributes:
        num_sent: Blocks that need not be sent any more; None without a grant.
        table: Keeps its blocks from the last chunk on, until the decode side has them.
        done: What to say when all its pages have been sent; None before its first token.
    """

    num_sent: int | None = None
    table: KVTable | None = None
    done: Done | None = None


@final
class PrefillWorker:
    """Serves one decode side. Not thread-safe.

    Args:
        llm: The model, with an engine that this worker has for itself.
        link: To the decode side.
        inbox: From there.

    Raises:
        ConfigError: The model is shared by several ranks (tensor parallelism).
    """

    def __init__(self, llm: LLM, link: Link, inbox: Inbox) -> None:
        self._engine = llm.engine
        self._scheduler = llm.scheduler
        self._kv_cache = llm.kv_cache
        self._link = link
        self._inbox = inbox
        self._outgoing: dict[str, Outgoing] = {}
        self._clocks: deque[TransferClock] = deque(maxlen=MAX_TRANSFERS)
        self._has_computed = False  # in the latest turn
        if not isinstance(llm.runner, ModelRunner):
            raise ConfigError("pages are sent by the process that computes them, so an engine must have one rank.")
        llm.runner.watch = self._sending
        link.send(Hello(llm.model_config, llm.kv_cache.spec, llm.scheduler.config, llm.kv_cache.num_blocks))

    def serve(self) -> None:
        """Compute what comes until the decode side says Bye.

        Raises:
            PeerLostError: It died or fell silent; every block is free again.
        """
        try:
            while self.turn(IDLE_S):
                pass
        finally:
            for request_id in list(self._outgoing):
                self._drop(request_id)

    def turn(self, timeout_s: int | float = 0.0) -> bool:
        """Hear what came and take a step. False after a Bye.

        If the last turn could compute nothing, because there is no prompt or no room for one, wait up to `timeout_s`
        for a message, or as long as the policy waits.
        """
        item = self._inbox.take(0.0 if self._has_computed else min(timeout_s, self._engine.idle_s or timeout_s))
        while item is not None:
            if isinstance(item[1], Bye):
                self._link.send(Bye())
                return False
            self._hear(item[1])
            item = self._inbox.take(0.0)
        num_steps = self._engine.stats().num_steps
        if self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self._finish(output)
        self._has_computed = self._engine.stats().num_steps > num_steps
        return True

    # -- messages

    def _hear(self, message: Message) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Grant(request_id, first_block) if request_id in self._outgoing:
                self._outgoing[request_id].num_sent = first_block
                self._send_rest(request_id)
            case Received(request_id) | Cancel(request_id):
                self._drop(request_id)
            case AskTransfers():
                self._link.send(Transfers(tuple(clock.record() for clock in self._clocks)))
                self._clocks.clear()

    def _submit(self, submit: Submit) -> None:
        params = replace(submit.params, max_tokens=1, stop=())  # the decode side sees to the end
        prompt = {"prompt_token_ids": submit.prompt_token_ids}
        try:
            self._engine.add_request(submit.request_id, prompt, params, cache_salt=submit.cache_salt, stream=False)
        except InvalidRequestError as error:
            self._link.send(Failed(submit.request_id, f"{type(error).__name__}: {error}"))
        else:
            self._outgoing[submit.request_id] = Outgoing(submit.first_block)

    def _finish(self, output: RequestOutput) -> None:
        """A prompt has its first tokens."""
        error = next((each.error for each in output.outputs if each.error is not None), None)
        if error is not None:
            self._drop(output.request_id)
            self._link.send(Failed(output.request_id, error))
            return
        metrics = output.metrics
        assert metrics.first_scheduled_s is not None
        assert metrics.first_token_s is not None
        self._outgoing[output.request_id].done = Done(
            request_id=output.request_id,
            tokens=tuple(map(_first_token, output.outputs)),
            queue_s=float(metrics.first_scheduled_s - metrics.arrival_s),
            prefill_s=float(metrics.first_token_s - metrics.first_scheduled_s),
            num_cached_tokens=metrics.num_cached_tokens,
            prompt_logprobs=output.prompt_logprobs,
        )
        self._send_rest(output.request_id)

    def _drop(self, request_id: str) -> None:
        """Nothing of this request is needed here any more; its full blocks stay in the prefix cache."""
        self._engine.abort(request_id)
        outgoing = self._outgoing.pop(request_id, None)
        if outgoing is not None and outgoing.table is not None:
            self._scheduler.ledger.release(outgoing.table)

    # -- pages

    @contextmanager
    def _sending(self, chunks: Sequence[ScheduledChunk]) -> Iterator[Callable[[int], None] | None]:
        """Send what this run completes, layer by layer. A run that raises is repeated, and its pages are sent again."""
        ranges, block_ids = self._to_send(chunks)
        if not ranges:
            yield None
            return
        send_layer, clock = self._announce(ranges, block_ids)
        try:
            yield send_layer
        finally:
            clock.computed()
        for each in ranges:
            self._outgoing[each.request_id].num_sent = each.first_block + each.num_blocks

    def _to_send(self, chunks: Sequence[ScheduledChunk]) -> tuple[list[PageRange], list[int]]:
        """The blocks that will be full after these chunks, or are the last of their prompt, and are to be sent."""
        ranges: list[PageRange] = []
        block_ids: list[int] = []
        for chunk in chunks:
            sequence = self._scheduler.sequences[chunk.seq_id]
            request_id = sequence.request.request_id
            outgoing = self._outgoing[request_id]
            is_last = chunk.num_samples > 0
            if is_last and outgoing.table is None:
                outgoing.table = self._scheduler.ledger.hold(sequence)  # it has all its blocks now
            num_computed = chunk.start + len(chunk.token_ids)
            end = len(chunk.block_ids) if is_last else num_computed // self._kv_cache.spec.block_size
            if outgoing.num_sent is not None and outgoing.num_sent < end:
                ranges.append(PageRange(request_id, outgoing.num_sent, end - outgoing.num_sent))
                block_ids += chunk.block_ids[outgoing.num_sent : end]
        return ranges, block_ids

    def _send_rest(self, request_id: str) -> None:
        """With a grant and a first token: send the blocks that no run has sent, then say that it is done."""
        outgoing = self._outgoing[request_id]
        if outgoing.num_sent is None or outgoing.done is None:
            return
        assert outgoing.table is not None
        block_ids = outgoing.table.block_ids[outgoing.num_sent :]
        if block_ids:
            send_layer, _ = self._announce([PageRange(request_id, outgoing.num_sent, len(block_ids))], block_ids)
            for layer in range(self._kv_cache.spec.num_layers):
                send_layer(layer)
        self._link.send(outgoing.done)

    def _announce(
        self, ranges: Sequence[PageRange], block_ids: Sequence[int]
    ) -> tuple[Callable[[int], None], TransferClock]:
        """Say which pages follow; returns what sends a layer of them."""
        spec = self._kv_cache.spec
        clock = TransferClock(spec.num_layers * len(block_ids), spec.num_layers * layer_bytes(spec, len(block_ids)))
        self._clocks.append(clock)
        self._link.send(Pages(tuple(ranges)))
        return partial(self._send_layer, clock, tuple(block_ids)), clock

    def _send_layer(self, clock: TransferClock, block_ids: tuple[int, ...], layer: int) -> None:
        start_s = time.monotonic()
        buffer = pack_layer(self._kv_cache, layer, block_ids)
        clock.packed(start_s)
        self._link.send_layer(buffer, clock.sent)


def _first_token(completion: CompletionOutput) -> SampledToken:
    if completion.logprobs is None:
        return SampledToken(completion.token_ids[0])
    said = completion.logprobs[0]
    return SampledToken(said.token_id, said.logprob, said.top)
