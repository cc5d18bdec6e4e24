"""What a user may pass as a prompt, turned into token ids; and what only the engine can check at the door."""

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError
from twophase.core.sampling_params import SamplingParams
from twophase.engine.detokenizer import TextDecoder
from twophase.engine.guidance import Grammar, Guidance

Prompt = str | Mapping[str, Any]  # text, {"prompt": text} or {"prompt_token_ids": [...]}; "cache_salt" besides


@runtime_checkable
class TextCodec(TextDecoder, Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str) -> list[int]: ...


def token_ids_of(prompt: Prompt, codec: TextCodec | None, vocab_size: int) -> tuple[tuple[int, ...], str | None]:
    """A prompt's token ids, and its text if it has one.

    Raises:
        InvalidRequestError: It is neither text nor a mapping with one of "prompt" and "prompt_token_ids", it is text
            and there is no tokenizer, it is empty, or an id is not in the vocabulary.
    """
    if isinstance(prompt, Mapping) and set(prompt) - {"cache_salt"} == {"prompt"} and isinstance(prompt["prompt"], str):
        prompt = prompt["prompt"]
    if isinstance(prompt, str):
        if codec is None:
            raise InvalidRequestError(
                "the engine has no tokenizer (skip_tokenizer_init, or a model folder without one), so a prompt must be "
                "{'prompt_token_ids': [...]}, got text."
            )
        return _checked(codec.encode(prompt), vocab_size, f"the text {prompt!r}"[:80]), prompt
    if not isinstance(prompt, Mapping) or set(prompt) - {"cache_salt"} != {"prompt_token_ids"}:
        got = f"a mapping with keys {sorted(map(str, prompt))}" if isinstance(prompt, Mapping) else repr(prompt)[:80]
        raise InvalidRequestError(f"a prompt is text or {{'prompt_token_ids': [...]}}, got {got}.")
    return _checked(prompt["prompt_token_ids"], vocab_size, "an empty list of ids"), None


def cache_salt_of(prompt: Prompt) -> str:
    """The salt in a prompt, as vLLM has it there; none is "".

    Raises:
        InvalidRequestError: It is no text.
    """
    salt = prompt.get("cache_salt", "") if isinstance(prompt, Mapping) else ""
    if not isinstance(salt, str):
        raise InvalidRequestError(f"cache_salt must be text, got {salt!r}.")
    return salt


def _checked(token_ids: Iterable[Any], vocab_size: int, source: str) -> tuple[int, ...]:
    checked = tuple(token_ids)
    if not checked:
        raise InvalidRequestError(f"the prompt must have at least one token, got none from {source}.")
    for position, token_id in enumerate(checked):
        # Integral: NumPy's integers are welcome too.
        if not isinstance(token_id, Integral) or isinstance(token_id, bool) or not 0 <= int(token_id) < vocab_size:
            raise InvalidRequestError(
                f"token ids must be whole numbers in [0, {vocab_size}), the model's vocabulary; got {token_id!r} at "
                f"position {position}. Was the prompt made with another model's tokenizer?"
            )
    return tuple(map(int, checked))


def check_params(params: SamplingParams, codec: TextCodec | None, vocab_size: int) -> None:
    """Raises InvalidRequestError for a stop that could never be met."""
    if params.stop and codec is None:
        raise InvalidRequestError(
            f"stop strings need a tokenizer, and the engine has none, got {list(params.stop)}; use stop_token_ids."
        )
    for token_id in params.stop_token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"stop_token_ids must be in the vocabulary, [0, {vocab_size}), got {token_id}: it could never stop."
            )


def compile_grammar(params: SamplingParams, guidance: Guidance | None) -> Grammar | None:
    """The grammar of the request's structured outputs, if it has any.

    Raises:
        InvalidRequestError: There is no tokenizer; or see `Guidance.compile`.
    """
    if params.structured_outputs is None:
        return None
    if guidance is None:
        raise InvalidRequestError(
            "structured_outputs are text, so they need a tokenizer, and the engine has none (skip_tokenizer_init)."
        )
    return guidance.compile(params)
