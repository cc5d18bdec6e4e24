"""POST /v1/completions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, RequestOutput, SamplingParams, TokenLogprobs
from twophase.core.rules import TEXT, Rule, items_of, whole_number
from twophase_server.answering import AnswerFormat, Part, answer
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
        self._offsets: dict[int, int] = defaultdict(int)  # of each choice's next token, as the token texts count

    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        begins = part.is_first and self._echo is not None
        return {
            "index": index,
            "text": self._prompt_text(index // self.n) + part.text if begins else part.text,
            "logprobs": self._logprobs(index, output, part, begins) if self.wants_logprobs else None,
            **part.reasons,
        }

    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        begins = part.is_first and self._echo is not None
        if begins or part.text or part.entries or part.ended is not None:
            yield self.choice(index, output, part)

    def _prompt_text(self, position: int) -> str:
        assert self._echo is not None
        given, tokenizer = self._echo[position], self.service.llm.tokenizer
        if isinstance(given, str):
            return given
        return "" if tokenizer is None else tokenizer.decode(given, skip_special_tokens=False)

    def _logprobs(self, index: int, output: RequestOutput, part: Part, begins: bool) -> dict[str, Any]:
        entries: list[TokenLogprobs | None] = list(part.entries)
        token_ids = list(part.token_ids)
        if begins:
            entries = [*(output.prompt_logprobs or ()), *entries]
            token_ids = [*output.prompt_token_ids, *token_ids]
        found = completion_logprobs(entries, token_ids, self.service.token_texts, self._offsets[index])
        self._offsets[index] += sum(map(len, found["tokens"]))
        return found
