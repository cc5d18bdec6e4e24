"""POST /v1/chat/completions."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, RequestOutput, TokenLogprobs
from twophase.core.rules import whole_number
from twophase.scheduling.limits import num_blocks_at_most
from twophase.scheduling.scheduler import Scheduler
from twophase_server.answering import AnswerFormat, Part, answer
from twophase_server.endpoint import Call, Endpoint
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, Unsupported
from twophase_server.logprobs import chat_logprobs
from twophase_server.messages import MESSAGES
from twophase_server.sampling import COMMON_RULES, COMMON_UNSUPPORTED, SAMPLING_RULES, sampling_params
from twophase_server.service import Service

_NO_TOOLS = "the engine calls no tools"
_RULES = {
    **SAMPLING_RULES,
    **COMMON_RULES,
    "messages": MESSAGES,
    "special_tokens_in_content": FLAG,
    "logprobs": FLAG,
    "top_logprobs": whole_number(at_least=0, at_most=MAX_LOGPROBS),
    "max_completion_tokens": SAMPLING_RULES["max_tokens"],
}
_UNSUPPORTED = {
    **COMMON_UNSUPPORTED,
    "tools": Unsupported(_NO_TOOLS, ([],)),
    "tool_choice": Unsupported(_NO_TOOLS, ("none", "auto")),
    "functions": Unsupported(_NO_TOOLS, ([],)),
    "function_call": Unsupported(_NO_TOOLS, ("none",)),
    "modalities": Unsupported("the model writes text only", (["text"],)),
    "audio": Unsupported("the model writes text only"),
    "web_search_options": Unsupported(_NO_TOOLS),
    "service_tier": Unsupported("there is one tier; use priority", ("auto", "default")),
    "echo": Unsupported("use /v1/completions"),
    "continue_final_message": Unsupported("use /v1/completions", (False,)),
    "chat_template": Unsupported("the model's own is used"),
}


async def _answer(call: Call) -> Response:
    prompt = await call.service.render(call.fields)
    call.service.require_length(len(prompt))
    max_tokens = _max_tokens(call.fields, len(prompt), call.service)
    params = sampling_params(call.fields, logprobs=_num_logprobs(call.fields), max_tokens=max_tokens)
    return await answer(call, [prompt], ChatFormat(call, params))


chat_completions = Endpoint(_answer, _RULES, _UNSUPPORTED, required=("messages",))


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    if not fields.get("logprobs"):
        if fields.get("top_logprobs"):
            raise invalid("top_logprobs requires logprobs=true.", "top_logprobs")
        return None
    return int(fields.get("top_logprobs", 0))


def _max_tokens(fields: Mapping[str, Any], num_prompt_tokens: int, service: Service) -> int:
    """The field's value under its older or newer name; by default the room left in the context and in the pool."""
    given = {fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    if len(given) > 1:
        raise invalid(
            f"max_tokens and max_completion_tokens mean the same; got {fields['max_tokens']} and "
            f"{fields['max_completion_tokens']}.",
            "max_completion_tokens",
        )
    if given:
        return int(given.pop())
    return max_new_tokens(service.llm.llm.scheduler, num_prompt_tokens, fields.get("n", 1))


def max_new_tokens(scheduler: Scheduler, num_prompt_tokens: int, n: int) -> int:
    """The largest `max_tokens` with which the scheduler finds room for such a request, and at least 1."""
    config, cache = scheduler.config, scheduler.cache

    def does_not_fit(max_tokens: int) -> bool:
        return num_blocks_at_most(num_prompt_tokens, max_tokens, n, config, cache) > cache.num_blocks

    most = max(1, config.max_model_len - num_prompt_tokens)
    return max(1, bisect_left(range(1, most + 1), True, key=does_not_fit))


@final
class ChatFormat(AnswerFormat):
    """`chat.completion`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(part.entries), **part.reasons}

    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        if part.is_first:
            yield self._chunk(index, {"role": "assistant", "content": ""})
        if part.text or part.entries:
            yield self._chunk(index, {"content": part.text}, part.entries)
        if part.is_last:
            yield self._chunk(index, {}) | part.reasons

    def _chunk(self, index: int, delta: Mapping[str, str], entries: Sequence[TokenLogprobs] = ()) -> dict[str, Any]:
        logprobs = self._logprobs(entries) if entries else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self.service.token_texts) if self.params.logprobs is not None else None
