"""Runs one API request on the engine and returns its answer, whole or streamed, in the endpoint's format."""

import abc
import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, NamedTuple

from starlette.responses import JSONResponse, Response

from twophase.core.errors import TwophaseError
from twophase.core.request import CompletionOutput, RequestOutput, SamplingParams, TokenLogprobs
from twophase_features.serving.async_llm import RequestStream
from twophase_features.structured_outputs.guidance import GuidanceError
from twophase_server.endpoint import Call
from twophase_server.errors import ApiError
from twophase_server.sampling import wants_usage
from twophase_server.sse import DONE, event, event_stream


class Part(NamedTuple):
    """The part of a completion that has not been sent.

    Attributes:
        is_first: Whether nothing has been sent.
        entries: Its log-probabilities.
        completion: The completion so far.
    """

    is_first: bool
    text: str
    entries: Sequence[TokenLogprobs]
    completion: CompletionOutput

    @property
    def is_last(self) -> bool:
        return self.completion.finish_reason is not None

    @property
    def reasons(self) -> dict[str, Any]:
        """Why the completion ended; empty reasons before its end."""
        return {"finish_reason": self.completion.finish_reason, "stop_reason": self.completion.stop_reason}


class AnswerFormat(abc.ABC):
    """One endpoint's format of answers. Made for one request. The choices of the prompt at position i begin at index
    i * n.

    Attributes:
        prefix, kind, chunk_kind: How ids begin; `object` of an answer, and of a stream's chunks.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, call: Call, params: SamplingParams) -> None:
        self.service, self.params = call.service, params
        self._newest: dict[int, RequestOutput] = {}  # by the prompt's position
        self._sent: dict[int, tuple[int, int]] = {}  # characters and tokens, by choice
        self._ended: set[int] = set()
        self._has_usage, self._has_usage_so_far = wants_usage(call.fields)
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": call.service.model_name,
        }

    @abc.abstractmethod
    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        """A finished completion, which is a single part."""

    @abc.abstractmethod
    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        """The choices with which a stream sends a part."""

    def take(self, position: int, output: RequestOutput) -> None:
        """Note the newest output of a prompt. Raises ApiError if one of its completions failed."""
        self._newest[position] = output
        for completion in output.outputs:
            if completion.finish_reason == "error":
                why = completion.error or ""
                if why.startswith(GuidanceError.__name__):  # the request's own grammar
                    raise ApiError(400, f"the grammar cannot be followed any further: {why}", "grammar_failed")
                raise ApiError(500, f"the request failed while it ran: {why}", "request_failed")

    def whole(self) -> dict[str, Any]:
        """The answer, from the finished outputs of all prompts."""
        choices = [
            self.choice(index, output, part)
            for position, output in sorted(self._newest.items())
            for index, part in self._parts(position, output)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage(self._newest.values())}

    def pieces(self, position: int) -> Iterator[dict[str, Any]]:
        """The chunks for the new part of a prompt's output. Their `usage` is null as OpenAI has it, or the usage so far
        as vLLM has it."""
        output = self._newest[position]
        more = {"usage": usage([output]) if self._has_usage_so_far else None} if self._has_usage else {}
        for index, part in self._parts(position, output):
            for choice in self.new_choices(index, output, part):
                yield {**self._head, "object": self.chunk_kind, "choices": [choice], **more}

    def _parts(self, position: int, output: RequestOutput) -> Iterator[tuple[int, Part]]:
        """The new part of each completion that had not ended, with its choice's index."""
        for completion in output.outputs:
            index = position * self.params.n + completion.index
            if index not in self._ended:
                num_characters, num_tokens = self._sent.get(index, (0, 0))
                entries = (completion.logprobs or ())[num_tokens:]
                part = Part(index not in self._sent, completion.text[num_characters:], entries, completion)
                yield index, part
                self._sent[index] = len(completion.text), num_tokens + len(entries)
                if part.is_last:
                    self._ended.add(index)

    def last_pieces(self) -> Iterator[dict[str, Any]]:
        """The chunk with the usage, if requested."""
        if self._has_usage:
            yield {**self._head, "object": self.chunk_kind, "choices": [], "usage": usage(self._newest.values())}


async def answer(call: Call, prompts: Sequence[Sequence[int]], answer_format: AnswerFormat) -> Response:
    """Submit the prompts' token ids to the engine and write the answer; at the end of the call, unfinished requests are
    aborted. Raises ApiError or TwophaseError if the engine refused the request, or it failed before its first byte was
    sent."""
    streams = await _submit(call, prompts, answer_format.params)
    outputs = await call.at_end.enter_async_context(aclosing(_merged(streams)))
    if call.fields.get("stream"):
        return event_stream(await call.at_end.enter_async_context(aclosing(_events(call, outputs, answer_format))))
    async for position, output in outputs:
        answer_format.take(position, output)
    return await asyncio.to_thread(lambda: JSONResponse(answer_format.whole()))


async def _submit(call: Call, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[RequestStream]:
    """Submit all prompts or none. Raises the first refusal."""
    fields, service, account = call.fields, call.service, call.account
    service.require_n(params.n)
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

    async def submit(prompt: Sequence[int]) -> RequestStream:
        request_id = service.tenants.new_request_id(account)
        stream = await service.llm.submit({"prompt_token_ids": prompt}, params, request_id=request_id, **options)
        call.at_end.callback(stream.abort)  # one by one: the client may leave before all are accepted
        return stream

    streams = []
    for found in await asyncio.gather(*map(submit, prompts), return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        streams.append(found)
    return streams


async def _merged(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The prompts' outputs in order of arrival, each with its prompt's position."""
    if len(streams) == 1:  # the usual case; tasks would add half of this function's other cost
        async for output in streams[0]:
            yield 0, output
        return
    coming = {asyncio.ensure_future(stream.__anext__()): i for i, stream in enumerate(streams)}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                position, output = coming.pop(task), task.result()
                yield position, output
                if not output.finished:
                    coming[asyncio.ensure_future(streams[position].__anext__())] = position
    finally:
        for task in coming:
            if not task.cancel() and not task.cancelled():
                task.exception()  # it failed too; only the first failure is reported


async def _events(
    call: Call, outputs: AsyncGenerator[tuple[int, RequestOutput], None], answer_format: AnswerFormat
) -> AsyncGenerator[str, None]:
    try:
        async for position, output in outputs:
            answer_format.take(position, output)
            for piece in answer_format.pieces(position):
                yield event(piece)
    except TwophaseError as error:  # too late for a status
        yield event(call.service.refusal(error).to_dict())
        return
    for piece in answer_format.last_pieces():
        yield event(piece)
    yield DONE


def usage(outputs: Iterable[RequestOutput]) -> dict[str, Any]:
    """OpenAI's `usage`: a prompt counts once, whatever its number of completions."""
    outputs = list(outputs)
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_new = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.num_cached_tokens for output in outputs)},
    }
