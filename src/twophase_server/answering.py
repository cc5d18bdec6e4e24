"""Runs one API request on the engine and returns its answer, whole or streamed, in the endpoint's format."""

import abc
import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, final

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.errors import TwophaseError
from twophase.core.request import CompletionOutput, RequestOutput, SamplingParams, TokenLogprobs
from twophase_features.serving.async_llm import RequestStream
from twophase_features.structured_outputs.guidance import GuidanceError
from twophase_server.body import to_json
from twophase_server.errors import ApiError
from twophase_server.sampling import UsageWish
from twophase_server.service import Call, Service
from twophase_server.sse import DONE, EventStream, event

T = TypeVar("T")


class Part(NamedTuple):
    """The part of a completion that has not been sent.

    Attributes:
        is_first: Whether nothing has been sent.
        entries, token_ids: Its log-probabilities, and their tokens.
        ended: The completion, if this is its end.
    """

    is_first: bool
    text: str
    entries: Sequence[TokenLogprobs]
    token_ids: Sequence[int]
    ended: CompletionOutput | None

    @property
    def reasons(self) -> dict[str, Any]:
        """Why it ended; empty reasons before the end."""
        ended = self.ended
        return {
            "finish_reason": None if ended is None else ended.finish_reason,
            "stop_reason": None if ended is None else ended.stop_reason,
        }


class AnswerFormat(abc.ABC):
    """One endpoint's format of answers. Made for one request. The choices of the prompt at position i begin at index
    i * n.

    Attributes:
        prefix, kind, chunk_kind: How ids begin; `object` of an answer, and of a stream's chunks.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, service: Service, params: SamplingParams, usage_wish: UsageWish) -> None:
        self.service, self.n, self.wants_logprobs = service, params.n, params.logprobs is not None
        self._sent: dict[int, tuple[int, int]] = {}  # characters and tokens, by choice
        self._ended: set[int] = set()
        self._usage_wish = usage_wish
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.model_name,
        }

    @abc.abstractmethod
    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        """A finished completion, which is a single part."""

    @abc.abstractmethod
    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        """The choices with which a stream sends a part."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The answer, from the finished outputs of all prompts."""
        choices = [
            self.choice(index, output, part)
            for position, output in enumerate(outputs)
            for index, part in self._parts(position, output)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage(outputs)}

    def pieces(self, position: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The chunks for the new part of an output; `position` is its prompt's. Their `usage` is null as OpenAI has it,
        or the usage so far as vLLM has it."""
        wish = self._usage_wish
        more = {"usage": usage([output]) if wish.in_chunks else None} if wish.at_end else {}
        for index, part in self._parts(position, output):
            for choice in self.new_choices(index, output, part):
                yield {**self._head, "object": self.chunk_kind, "choices": [choice], **more}

    def _parts(self, position: int, output: RequestOutput) -> Iterator[tuple[int, Part]]:
        """The new part of each completion, with its choice's index."""
        for completion in output.outputs:
            index = position * self.n + completion.index
            num_characters, num_tokens = self._sent.get(index, (0, 0))
            entries = (completion.logprobs or ())[num_tokens:]
            token_ids = completion.token_ids[num_tokens : num_tokens + len(entries)]
            has_ended = completion.finish_reason is not None and index not in self._ended
            ended = completion if has_ended else None
            yield index, Part(index not in self._sent, completion.text[num_characters:], entries, token_ids, ended)
            self._sent[index] = len(completion.text), num_tokens + len(entries)
            if has_ended:
                self._ended.add(index)

    def last_piece(self, outputs: Sequence[RequestOutput]) -> dict[str, Any] | None:
        """The chunk with the usage, if requested."""
        if not self._usage_wish.at_end:
            return None
        return {**self._head, "object": self.chunk_kind, "choices": [], "usage": usage(outputs)}


async def answer(
    call: Call, prompts: Sequence[Sequence[int]], params: SamplingParams, answer_format: AnswerFormat
) -> Response:
    """Submit the prompts' token ids to the engine and write the answer. If the client disconnects, its requests are
    aborted. Raises ApiError or TwophaseError if the engine refused the request, or it failed before its first byte was
    sent."""
    work = Work(call, prompts, params)
    try:
        await while_connected(call.request, work.submit())
        if call.fields.get("stream"):
            return EventStream(_events(call.service, work, answer_format), at_end=work.end)
        outputs = await while_connected(call.request, work.finish())
        text = await asyncio.to_thread(lambda: to_json(answer_format.whole(outputs)))
        return Response(text, media_type="application/json")
    except BaseException:
        work.end()
        raise


@final
class Work:
    """The engine's requests that answer one HTTP request: one for each prompt."""

    def __init__(self, call: Call, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        self._call, self._prompts, self._params = call, prompts, params
        self._streams: dict[int, RequestStream] = {}  # by the prompt's position
        self._newest: dict[int, RequestOutput] = {}

    async def submit(self) -> None:
        """Submit all prompts or none. Raises the engine's first refusal."""
        fields, service, account = self._call.fields, self._call.service, self._call.lease.account
        account.require_priority(fields.get("priority", 0))
        limits = [limit for limit in (fields.get("deadline_s"), service.settings.deadline_s) if limit is not None]
        options = {
            "stream": fields.get("stream", False),
            "priority": fields.get("priority", 0),
            "cache_salt": account.salt(fields.get("cache_salt", "")),
            "tenant": account.name,
            "ttft_slo_s": fields.get("ttft_slo_s"),
            "deadline_s": min(limits, default=None),
        }
        asking = (self._submit(position, options) for position in range(len(self._prompts)))
        for refusal in await asyncio.gather(*asking, return_exceptions=True):
            if refusal is not None:
                raise refusal

    async def _submit(self, position: int, options: Mapping[str, Any]) -> None:
        # Recorded one by one: if the client leaves before all are accepted, the accepted ones must be aborted.
        service = self._call.service
        self._streams[position] = await service.llm.submit(
            {"prompt_token_ids": self._prompts[position]},
            self._params,
            request_id=service.tenants.new_request_id(self._call.lease.account),
            **options,
        )

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """The prompts' outputs in order of arrival, each with its prompt's position.

        Raises:
            ApiError: 500, one of its completions failed.
            TwophaseError: As `AsyncLLM.generate`.
        """
        async with contextlib.aclosing(self._merged()) as merged:
            async for position, output in merged:
                self._newest[position] = output
                _require_success(output)
                yield position, output

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        if len(self._streams) == 1:  # the usual case; tasks would add half of this function's other cost
            async for output in self._streams[0]:
                yield 0, output
            return
        coming = {asyncio.ensure_future(stream.__anext__()): i for i, stream in self._streams.items()}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    position, output = coming.pop(task), task.result()
                    yield position, output
                    if not output.finished:
                        coming[asyncio.ensure_future(self._streams[position].__anext__())] = position
        finally:
            for task in coming:
                if not task.cancel() and not task.cancelled():
                    task.exception()  # it failed too; only the first failure is reported

    async def finish(self) -> list[RequestOutput]:
        """The last output of each prompt."""
        async with contextlib.aclosing(self.outputs()) as outputs:
            async for _ in outputs:
                pass
        return self.newest()

    def newest(self) -> list[RequestOutput]:
        return [self._newest[position] for position in sorted(self._newest)]

    def end(self) -> None:
        """Abort unfinished requests. May be called again."""
        for stream in self._streams.values():
            stream.abort()
        self._call.lease.end()


def _require_success(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.finish_reason == "error":
            if (completion.error or "").startswith(GuidanceError.__name__):  # the request's own grammar
                raise ApiError(400, f"the grammar cannot be followed any further: {completion.error}", "grammar_failed")
            raise ApiError(500, f"the request failed while it ran: {completion.error}", "request_failed")


async def _events(service: Service, work: Work, answer_format: AnswerFormat) -> AsyncGenerator[str, None]:
    try:
        async with contextlib.aclosing(work.outputs()) as outputs:
            async for position, output in outputs:
                for piece in answer_format.pieces(position, output):
                    yield event(piece)
    except TwophaseError as error:  # too late for a status
        yield event(service.refusal(error).to_dict())
        return
    last = answer_format.last_piece(work.newest())
    if last is not None:
        yield event(last)
    yield DONE


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects.

    Raises:
        ApiError: 499, the client has disconnected; it will not see the answer.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "the client has gone.", "client_gone")
    finally:
        for task in (working, leaving):
            task.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected (its body has been read, so no other message can arrive)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """OpenAI's `usage`: a prompt counts once, whatever its number of completions."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_new = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.num_cached_tokens for output in outputs)},
    }
