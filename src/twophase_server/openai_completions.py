"""POST /v1/completions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, RequestOutput, SamplingParams, TokenLogprobs
from twophase.core.rules import Rule, items_of
from twophase_server.answering import Part, answer
from twophase_server.choices import ChoicesFormat
from twophase_server.endpoint import Call, Endpoint
from twophase_server.errors import invalid
from twophase_server.fields import ANY_TEXT, FLAG, TOKEN_ID, Field, Reader, Table, Unsupported, read_ints, whole
from twophase_server.logprobs import completion_logprobs
from twophase_server.sampling import COMMON, COMMON_UNSUPPORTED, forms_of, sampling_params

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


_IDS_SCHEMA = {"type": "array", "items": TOKEN_ID, "minItems": 1}
_PROMPTS = Field(
    Rule("text, a list of texts, a list of token ids, or a list of such lists", _read_prompts),
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            _IDS_SCHEMA,
            {"type": "array", "items": _IDS_SCHEMA, "minItems": 1},
        ]
    },
)
_IDS = Field(Rule(_PROMPTS.rule.words, read_ints), _IDS_SCHEMA)
_FIELDS: Mapping[str, Reader] = {
    **COMMON,
    "prompt": _PROMPTS,
    "echo": FLAG,
    "logprobs": whole(at_least=0, at_most=MAX_LOGPROBS),
    "parallel_tool_calls": FLAG,  # there are no tools
}
_UNSUPPORTED = {
    **COMMON_UNSUPPORTED,
    "suffix": Unsupported("the model writes on at the end only", ("",)),
    "messages": Unsupported("use /v1/chat/completions"),
    "tools": Unsupported("use /v1/chat/completions", ([],)),
    "max_completion_tokens": Unsupported("here it is max_tokens"),
    "top_logprobs": Unsupported("here it is logprobs, a number"),
}


async def _answer(call: Call) -> Response:
    prompts, num_logprobs = await _encode(call), call.fields.get("logprobs")
    echoed = num_logprobs if call.fields.get("echo") else None
    params = sampling_params(call.fields, forms_of(call.fields), logprobs=num_logprobs, prompt_logprobs=echoed)
    return await answer(call, prompts, CompletionFormat(call, params))


completions = Endpoint(_answer, Table(_FIELDS, _UNSUPPORTED, required=("model", "prompt")))


async def _encode(call: Call) -> list[list[int]]:
    """Token ids of each prompt. Raises ApiError (400) for too many prompts, and for a prompt that is too long."""
    given, most = call.fields["prompt"], call.service.settings.max_prompts
    if len(given) > most:
        raise invalid(f"prompt must have at most {most} prompts, got {len(given)}.", "prompt", "too_many_prompts")
    given = [(ANY_TEXT if isinstance(prompt, str) else _IDS).read(prompt, "prompt") for prompt in given]
    prompts = [await call.service.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
    for prompt in prompts:
        call.service.require_length(len(prompt))
    return prompts


@final
class CompletionFormat(ChoicesFormat):
    """`text_completion`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, call: Call, params: SamplingParams) -> None:
        super().__init__(call, params)
        self._prompts: list[PromptGiven] | None = call.fields["prompt"] if call.fields.get("echo") else None
        self._offsets: dict[int, int] = defaultdict(int)  # of each choice's next token, as the token texts count

    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        text = self._prompt_text(index // self.params.n) + part.text if self._is_echo(part) else part.text
        logprobs = None if self.params.logprobs is None else self._logprobs(index, output, part)
        return {"index": index, "text": text, "logprobs": logprobs, **part.reasons}

    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        if self._is_echo(part) or part.text or part.entries or part.is_last:
            yield self.choice(index, output, part)

    def _is_echo(self, part: Part) -> bool:
        """Whether the part begins with its prompt."""
        return part.is_first and self._prompts is not None

    def _prompt_text(self, position: int) -> str:
        assert self._prompts is not None
        given, tokenizer = self._prompts[position], self.service.llm.tokenizer
        if isinstance(given, str):
            return given
        return "" if tokenizer is None else tokenizer.decode(given, skip_special_tokens=False)

    def _logprobs(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        entries: list[TokenLogprobs | None] = list(part.entries)
        token_ids = [entry.token_id for entry in part.entries]
        if self._is_echo(part):
            entries = [*(output.prompt_logprobs or ()), *entries]
            token_ids = [*output.prompt_token_ids, *token_ids]
        found = completion_logprobs(entries, token_ids, self.service.token_texts, self._offsets[index])
        self._offsets[index] += sum(map(len, found["tokens"]))
        return found
