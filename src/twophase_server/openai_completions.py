"""POST /v1/completions."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, CompletionOutput, RequestOutput, TokenLogprobs
from twophase.core.rules import TEXT, Rule, items_of, whole_number
from twophase_server.answering import AnswerFormat, EngineCall, answer, engine_options, usage, with_usage
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, Unsupported, read_field, read_fields, read_ints, read_object
from twophase_server.logprobs import completion_logprobs
from twophase_server.sampling import (
    COMMON_RULES,
    COMMON_UNSUPPORTED,
    SAMPLING_RULES,
    UsageWish,
    sampling_params,
    wants_usage,
)
from twophase_server.service import Service, service_of

PromptGiven = str | list[int]


def _read_prompts(value: Any) -> list[PromptGiven]:
    """One prompt or several, each a text or a list of token ids, whose values `_encode` checks."""
    if isinstance(value, str):
        return [value]
    items = list(items_of(value))
    if not items:
        raise ValueError
    kinds = set(map(type, items))
    return items if kinds in ({str}, {list}) else [read_ints(items)]


_PROMPTS = Rule("text, a list of texts, a list of token ids, or a list of such lists", _read_prompts)
_IDS = Rule(_PROMPTS.words, read_ints)
_RULES = {
    **SAMPLING_RULES,
    **COMMON_RULES,
    "prompt": _PROMPTS,
    "echo": FLAG,
    "logprobs": whole_number(at_least=0, at_most=MAX_LOGPROBS),
}
_UNSUPPORTED = {
    **COMMON_UNSUPPORTED,
    "suffix": Unsupported("the model writes on at the end only", ("",)),
    "messages": Unsupported("use /v1/chat/completions"),
    "tools": Unsupported("the engine calls no tools", ([],)),
    "max_completion_tokens": Unsupported("here it is max_tokens"),
    "top_logprobs": Unsupported("here it is logprobs, a number"),
}


async def completions(request: Request) -> Response:
    service = service_of(request)
    lease = service.enter(request)
    try:
        service.llm.check_acceptance()
        fields = read_fields(await read_object(request, service.settings.max_body_bytes), _RULES, _UNSUPPORTED)
        service.require_model(fields.get("model"))
        prompts = await _encode(fields, service)
        service.require_n(fields.get("n", 1))
        echo, num_logprobs = fields.get("echo", False), fields.get("logprobs")
        params = sampling_params(fields, logprobs=num_logprobs, prompt_logprobs=num_logprobs if echo else None)
        call = EngineCall(prompts, params, fields.get("stream", False), engine_options(fields, service, lease))
        answer_format = CompletionFormat(
            service, params.n, fields["prompt"] if echo else None, num_logprobs is not None, wants_usage(fields)
        )
        return await answer(request, service, lease, call, answer_format)
    except BaseException:
        lease.end()
        raise


async def _encode(fields: Mapping[str, Any], service: Service) -> list[list[int]]:
    """Token ids of each prompt. Raises ApiError (400) for too many prompts, and for a prompt that is too long."""
    given = fields.get("prompt")
    if given is None:
        raise invalid("prompt is missing.", "prompt")
    most = service.settings.max_prompts
    if len(given) > most:
        raise invalid(f"prompt must have at most {most} prompts, got {len(given)}.", "prompt", "too_many_prompts")
    given = [read_field("prompt", prompt, TEXT if isinstance(prompt, str) else _IDS) for prompt in given]
    prompts = [await service.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
    for prompt in prompts:
        service.require_length(len(prompt))
    return prompts


class _Shown(NamedTuple):
    """The length of a completion's sent part."""

    num_characters: int
    num_tokens: int
    text_offset: int  # of the next token's text, as the token texts count


@final
class CompletionFormat(AnswerFormat):
    """`text_completion`. The choices of the prompt at position i begin at index i * n.

    Args:
        echo: The prompts as given, if the text must begin with them.
    """

    def __init__(
        self, service: Service, n: int, echo: Sequence[PromptGiven] | None, wants_logprobs: bool, usage_wish: UsageWish
    ) -> None:
        self._service, self._n, self._echo = service, n, echo
        self._wants_logprobs, self._usage_wish = wants_logprobs, usage_wish
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        self._shown: dict[int, _Shown] = {}
        self._ended: set[int] = set()

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [
            self._choice(position, output, completion, _Shown(0, 0, 0), completion)
            for position, output in enumerate(outputs)
            for completion in output.outputs
        ]
        return {**self._head, "choices": choices, "usage": usage(outputs)}

    def pieces(self, position: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            index = position * self._n + completion.index
            is_end = completion.finish_reason is not None and index not in self._ended
            shown = self._shown.get(index, _Shown(0, 0, 0))
            is_first = self._echo is not None and index not in self._shown
            num_tokens = len(completion.logprobs or ())
            if is_first or is_end or len(completion.text) > shown.num_characters or num_tokens > shown.num_tokens:
                choice = self._choice(position, output, completion, shown, completion if is_end else None)
                self._shown[index] = _Shown(
                    len(completion.text), num_tokens, self._next_offset(choice, shown.text_offset)
                )
                if is_end:
                    self._ended.add(index)
                chunk = {**self._head, "choices": [choice]}
                yield with_usage(chunk, self._usage_wish, output)

    def last_piece(self, outputs: Sequence[RequestOutput]) -> dict[str, Any] | None:
        return {**self._head, "choices": [], "usage": usage(outputs)} if self._usage_wish.at_end else None

    def _choice(
        self,
        position: int,
        output: RequestOutput,
        completion: CompletionOutput,
        shown: _Shown,
        ended: CompletionOutput | None,
    ) -> dict[str, Any]:
        """The new part of a completion; `shown` has been sent."""
        index = position * self._n + completion.index
        begins = self._echo is not None and index not in self._shown
        text = completion.text[shown.num_characters :]
        return {
            "index": index,
            "text": self._prompt_text(position) + text if begins else text,
            "logprobs": self._logprobs(output, completion, shown, begins) if self._wants_logprobs else None,
            "finish_reason": None if ended is None else ended.finish_reason,
            "stop_reason": None if ended is None else ended.stop_reason,
        }

    def _prompt_text(self, position: int) -> str:
        assert self._echo is not None
        given, tokenizer = self._echo[position], self._service.llm.tokenizer
        if isinstance(given, str):
            return given
        return "" if tokenizer is None else tokenizer.decode(given, skip_special_tokens=False)

    def _logprobs(
        self, output: RequestOutput, completion: CompletionOutput, shown: _Shown, begins: bool
    ) -> dict[str, Any]:
        entries: list[TokenLogprobs | None] = list((completion.logprobs or ())[shown.num_tokens :])
        token_ids = list(completion.token_ids[shown.num_tokens : shown.num_tokens + len(entries)])
        if begins:
            entries = [*(output.prompt_logprobs or ()), *entries]
            token_ids = [*output.prompt_token_ids, *token_ids]
        return completion_logprobs(entries, token_ids, self._service.token_texts, shown.text_offset)

    @staticmethod
    def _next_offset(choice: Mapping[str, Any], offset: int) -> int:
        found = choice["logprobs"]
        return offset + sum(map(len, found["tokens"])) if found else offset
