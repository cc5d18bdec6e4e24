"""The prefill side: computes prompts, and sends their pages while the next layers are computed.

A run sends the blocks that it fills, and known blocks that it continues. A page leaves by being copied into a buffer,
so no block is kept for a transfer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import final

from twophase.core.errors import InvalidRequestError
from twophase.core.plan import BlockKey, ScheduledChunk
from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.runner import ModelRunner
from twophase.llm import LLM
from twophase_features.parallel import _protocol as wire
from twophase_features.parallel._channel import Inbox, Send
from twophase_features.parallel.pages import pack_layer

IDLE_S = 1.0  # how long one look into an empty inbox may take; a message ends it at once
PREFILL = SamplingParams(max_tokens=1, temperature=0.0)  # a token must be drawn; it is dropped


@final
class PrefillWorker:
    """Serves one decode side. Not thread-safe.

    Args:
        llm: The model, with an engine that this worker has for itself.
        send: To the decode side.
        inbox: From there.
    """

    def __init__(self, llm: LLM, send: Send, inbox: Inbox) -> None:
        self._engine, self._scheduler, self._kv_cache = llm.engine, llm.scheduler, llm.kv_cache
        self._send, self._inbox = send, inbox
        self._unsent: dict[str, tuple[BlockKey, ...]] = {}  # by request, the last of its pages
        self._transfers: list[wire.Transfer] = []  # since the last prompt that was done
        assert isinstance(llm.runner, ModelRunner)  # `pairs` refuses disaggregation of several ranks
        llm.runner.watch = self._sending

    def serve(self) -> None:
        """Compute what comes until the decode side says Bye.

        Raises:
            PeerLostError: It died or fell silent; every block is free again.
        """
        try:
            while self.turn(IDLE_S):
                pass
        finally:
            for request_id in list(self._unsent):
                self._cancel(request_id)

    def turn(self, timeout_s: int | float = 0.0) -> bool:
        """Hear what came and take a step. False after a Bye.

        Without a prompt to compute, wait up to `timeout_s` for a message; if the policy waits, no longer than it does.
        """
        if self._engine.has_unfinished_requests():
            timeout_s = min(timeout_s, self._engine.idle_s)
        for message in self._inbox.messages(timeout_s):
            match message:
                case wire.Submit():
                    self._submit(message)
                case wire.Cancel(request_id):
                    self._cancel(request_id)
                case wire.Bye():
                    self._send(wire.Bye())
                    return False
        if self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self._finish(output)
        return True

    def _submit(self, submit: wire.Submit) -> None:
        prompt = {"prompt_token_ids": submit.prompt_token_ids}
        try:
            self._engine.add_request(submit.request_id, prompt, PREFILL, cache_salt=submit.cache_salt, stream=False)
        except InvalidRequestError as error:
            self._send(wire.Done(submit.request_id, f"{type(error).__name__}: {error}"))
        else:
            self._unsent[submit.request_id] = submit.keys

    def _finish(self, output: RequestOutput) -> None:
        del self._unsent[output.request_id]
        error, metrics = output.outputs[0].error, output.metrics
        if error is not None:
            self._send(wire.Done(output.request_id, error))
            return
        start_s, end_s = metrics.first_scheduled_s, metrics.first_token_s
        assert start_s is not None
        assert end_s is not None
        transfers, self._transfers = tuple(self._transfers), []
        # Its transfers are complete when it is sent, behind all pages.
        self._send(wire.Done(output.request_id, None, float(end_s - start_s), metrics.num_cached_tokens, transfers))

    def _cancel(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._unsent.pop(request_id, None)

    # -- pages

    @contextmanager
    def _sending(self, chunks: Sequence[ScheduledChunk]) -> Iterator[Callable[[int], None] | None]:
        """Send what this run completes, layer by layer. A run that raises is repeated, and its pages are sent again."""
        sending = {self._request_id(chunk): self._block_ids_to_send(chunk) for chunk in chunks}
        keys = [key for request_id, ids in sending.items() for key in self._unsent[request_id][: len(ids)]]
        if not keys:
            yield None
            return
        block_ids = [block_id for ids in sending.values() for block_id in ids]
        transfer = wire.Transfer(time.monotonic())
        self._transfers.append(transfer)
        try:
            yield partial(self._send_layer, transfer, tuple(keys), block_ids)
        finally:
            transfer.end_s = time.monotonic()
        for request_id, ids in sending.items():
            self._unsent[request_id] = self._unsent[request_id][len(ids) :]

    def _request_id(self, chunk: ScheduledChunk) -> str:
        return self._scheduler.sequences[chunk.seq_id].request.request_id

    def _block_ids_to_send(self, chunk: ScheduledChunk) -> Sequence[int]:
        """The blocks not sent yet that will be full after this chunk."""
        block_size = self._kv_cache.spec.block_size
        end = self._scheduler.sequences[chunk.seq_id].num_prompt_tokens // block_size
        first = end - len(self._unsent[self._request_id(chunk)])
        return chunk.block_ids[first : min(end, (chunk.start + len(chunk.token_ids)) // block_size)]

    def _send_layer(
        self, transfer: wire.Transfer, keys: tuple[BlockKey, ...], block_ids: Sequence[int], layer: int
    ) -> None:
        start_s = time.monotonic()
        parts = pack_layer(self._kv_cache, layer, block_ids)
        transfer.pack_s += time.monotonic() - start_s
        transfer.num_blocks += len(block_ids)
        transfer.num_bytes += sum(part.nbytes for part in parts)
        self._send(wire.Pages(keys, layer, parts), transfer.sent)
