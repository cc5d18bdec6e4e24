"""Runs one API request on the engine and returns its answer, whole or streamed, in the endpoint's format."""

import abc
import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from twophase.core.errors import TwophaseError
from twophase.core.request import CompletionOutput, RequestOutput, SamplingParams, TokenLogprobs
from twophase_features.serving.async_llm import RequestStream
from twophase_features.structured_outputs.guidance import GuidanceError
from twophase_features.structured_outputs.tool_calls import Call as FunctionCall
from twophase_features.structured_outputs.tool_calls import read_calls
from twophase_server.endpoint import Call
from twophase_server.errors import ApiError
from twophase_server.sse import DONE, event, event_stream


class CallPart(NamedTuple):
    """The part of a call that has not been sent; its name comes with its first part."""

    number: int
    name: str | None
    arguments: str


class Part(NamedTuple):
    """The part of a completion that has not been sent.

    Attributes:
        is_first: Whether nothing has been sent.
        text, calls: Its text, and its parts of calls.
        num_calls: Calls of the completion so far.
        entries: Its log-probabilities.
        completion: The completion so far.
    """

    is_first: bool
    text: str
    calls: Sequence[CallPart]
    num_calls: int
    entries: Sequence[TokenLogprobs]
    completion: CompletionOutput

    @property
    def is_last(self) -> bool:
        return self.completion.finish_reason is not None

    @property
    def reasons(self) -> dict[str, Any]:
        """Why the completion ended; empty reasons before its end."""
        found = self.completion.finish_reason
        finish_reason = "tool_calls" if found == "stop" and self.num_calls else found
        return {"finish_reason": finish_reason, "stop_reason": self.completion.stop_reason}


@dataclass
class Sent:
    """The parts of one completion that have been sent: characters of its text, characters of each call, tokens."""

    num_characters: int = 0
    num_of_calls: list[int] = field(default_factory=list)
    num_tokens: int = 0
    is_last: bool = False


class AnswerFormat(abc.ABC):
    """One endpoint's format of answers. Made for one request. The choices of the prompt at position i begin at index
    i * n."""

    def __init__(self, call: Call, params: SamplingParams) -> None:
        self.service, self.params = call.service, params
        self._newest: dict[int, RequestOutput] = {}  # by the prompt's position
        self._sent: dict[int, Sent] = {}  # by choice

    @abc.abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer, from the finished outputs of all prompts."""

    @abc.abstractmethod
    def pieces(self, position: int) -> Iterator[dict[str, Any]]:
        """A stream's events for the new parts of a prompt's output."""

    @abc.abstractmethod
    def last_pieces(self) -> Iterator[dict[str, Any]]:
        """A stream's events after all outputs."""

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """A stream's events after an error, which are its last."""
        yield error.to_dict()

    def take(self, position: int, output: RequestOutput) -> None:
        """Note the newest output of a prompt. Raises ApiError if one of its completions failed."""
        self._newest[position] = output
        for completion in output.outputs:
            if completion.finish_reason == "error":
                why = completion.error or ""
                if why.startswith(GuidanceError.__name__):  # the request's own grammar
                    raise ApiError(400, f"the grammar cannot be followed any further: {why}", "grammar_failed")
                raise ApiError(500, f"the request failed while it ran: {why}", "request_failed")

    def parts(self, position: int) -> Iterator[tuple[int, Part]]:
        """The new part of each completion that had not ended, with its choice's index."""
        form = self.params.structured_outputs
        has_calls = form is not None and form.tool_calls is not None
        for completion in self._newest[position].outputs:
            index = position * self.params.n + completion.index
            is_first, sent = index not in self._sent, self._sent.setdefault(index, Sent())
            if not sent.is_last:
                sent.is_last = completion.finish_reason is not None
                text, calls = read_calls(completion.text, sent.is_last) if has_calls else (completion.text, [])
                entries = (completion.logprobs or ())[sent.num_tokens :]
                new_text, new_calls = text[sent.num_characters :], _new_parts(calls, sent.num_of_calls)
                sent.num_characters, sent.num_tokens = len(text), sent.num_tokens + len(entries)
                yield index, Part(is_first, new_text, new_calls, len(calls), entries, completion)


def _new_parts(calls: Sequence[FunctionCall], num_sent: list[int]) -> list[CallPart]:
    """The parts of the calls beyond these numbers of characters, which are brought up to date."""
    num_begun = len(num_sent)
    num_sent += [0] * (len(calls) - num_begun)
    parts = []
    for i, (name, arguments) in enumerate(calls):
        if i >= num_begun or len(arguments) > num_sent[i]:
            parts.append(CallPart(i, name if i >= num_begun else None, arguments[num_sent[i] :]))
            num_sent[i] = len(arguments)
    return parts


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
        for piece in answer_format.failure(call.service.refusal(error)):
            yield event(piece)
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
