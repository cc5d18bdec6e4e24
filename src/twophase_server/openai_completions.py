"""POST /v1/completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, CompletionOutput, RequestOutput, SamplingParams, TokenLogprobs
from twophase.core.rules import TEXT, Rule, items_of, whole_number
from twophase_server.answering import AnswerFormat, answer
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, Unsupported, read_field, read_ints
from twophase_server.logprobs import completion_logprobs
from twophase_server.sampling import (
    COMMON_RULES,
    COMMON_UNSUPPORTED,
    SAMPLING_RULES,
    UsageWish,
    sampling_params,
    wants_usage,
)
from twophase_server.service import Call, Service, endpoint

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


@endpoint(_RULES, _UNSUPPORTED, required=("prompt",))
async def completions(call: Call) -> Response:
    service, fields = call.service, call.fields
    prompts = await _encode(fields, service)
    service.require_n(fields.get("n", 1))
    echo, num_logprobs = fields.get("echo", False), fields.get("logprobs")
    params = sampling_params(fields, logprobs=num_logprobs, prompt_logprobs=num_logprobs if echo else None)
    answer_format = CompletionFormat(service, params, wants_usage(fields), fields["prompt"] if echo else None)
    return await answer(call, prompts, params, answer_format)


async def _encode(fields: Mapping[str, Any], service: Service) -> list[list[int]]:
    """Token ids of each prompt. Raises ApiError (400) for too many prompts, and for a prompt that is too long."""
    given, most = fields["prompt"], service.settings.max_prompts
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


NOTHING = _Shown(0, 0, 0)


@final
class CompletionFormat(AnswerFormat):
    """`text_completion`.

    Args:
        echo: The prompts as given, if the text must begin with them.
    """

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, service: Service, params: SamplingParams, usage_wish: UsageWish, echo: Sequence[PromptGiven] | None
    ) -> None:
        super().__init__(service, params, usage_wish)
        self._echo = echo

    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        return self._choice(index, output, completion, completion)

    def new_choices(
        self, index: int, output: RequestOutput, completion: CompletionOutput, ended: CompletionOutput | None
    ) -> Iterator[dict[str, Any]]:
        shown, num_tokens = self.shown.get(index, NOTHING), len(completion.logprobs or ())
        is_longer = len(completion.text) > shown.num_characters or num_tokens > shown.num_tokens
        if self._begins(index) or ended is not None or is_longer:
            choice = self._choice(index, output, completion, ended)
            offset = shown.text_offset + sum(map(len, (choice["logprobs"] or {"tokens": ()})["tokens"]))
            self.shown[index] = _Shown(len(completion.text), num_tokens, offset)
            yield choice

    def _begins(self, index: int) -> bool:
        """Whether the prompt's text comes first."""
        return self._echo is not None and index not in self.shown

    def _choice(
        self, index: int, output: RequestOutput, completion: CompletionOutput, ended: CompletionOutput | None
    ) -> dict[str, Any]:
        """The new part of a completion."""
        text = completion.text[self.shown.get(index, NOTHING).num_characters :]
        return {
            "index": index,
            "text": self._prompt_text(index // self.n) + text if self._begins(index) else text,
            "logprobs": self._logprobs(index, output, completion) if self.wants_logprobs else None,
            "finish_reason": None if ended is None else ended.finish_reason,
            "stop_reason": None if ended is None else ended.stop_reason,
        }

    def _prompt_text(self, position: int) -> str:
        assert self._echo is not None
        given, tokenizer = self._echo[position], self.service.llm.tokenizer
        if isinstance(given, str):
            return given
        return "" if tokenizer is None else tokenizer.decode(given, skip_special_tokens=False)

    def _logprobs(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        shown = self.shown.get(index, NOTHING)
        entries: list[TokenLogprobs | None] = list((completion.logprobs or ())[shown.num_tokens :])
        token_ids = list(completion.token_ids[shown.num_tokens : shown.num_tokens + len(entries)])
        if self._begins(index):
            entries = [*(output.prompt_logprobs or ()), *entries]
            token_ids = [*output.prompt_token_ids, *token_ids]
        return completion_logprobs(entries, token_ids, self.service.token_texts, shown.text_offset)
