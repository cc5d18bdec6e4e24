"""What a user may pass as a prompt, turned into token ids; and the checks that only the engine can make."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError, prompt_too_long
from twophase.core.rules import TEXT, checked, items_of, read_int, shown
from twophase.core.sampling_params import SamplingParams
from twophase.engine.detokenizer import TextDecoder
from twophase_features.structured_outputs.guidance import Grammar

# Text, {"prompt": text} or {"prompt_token_ids": [...]}, "cache_salt" besides; or token ids, as they are.
Prompt = str | Mapping[str, Any] | Sequence[int]


@runtime_checkable
class TextCodec(TextDecoder, Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str, *, max_model_len: int | None = None) -> list[int]: ...


def token_ids_of(
    prompt: Prompt, codec: TextCodec | None, vocab_size: int, max_model_len: int | None = None
) -> tuple[tuple[int, ...], str | None]:
    """A prompt's token ids, and its text if it has one.

    Args:
        max_model_len: More tokens than fit it are refused before they are looked at; None: any number may come.

    Raises:
        InvalidRequestError: It is neither text nor a list nor a mapping with one of "prompt" and "prompt_token_ids", it
            is text and there is no tokenizer, it is empty or too long, or an id is not in the vocabulary.
    """
    if isinstance(prompt, Mapping) and set(prompt) - {"cache_salt", "tenant"} == {"prompt"}:
        prompt = checked('prompt["prompt"]', prompt["prompt"], TEXT)
    if isinstance(prompt, str):
        if codec is None:
            raise InvalidRequestError(
                "the engine has no tokenizer (skip_tokenizer_init, or a model folder without one), so a prompt must be "
                "{'prompt_token_ids': [...]}, got text."
            )
        text = checked("a prompt", prompt, TEXT)
        ids = codec.encode(text, max_model_len=max_model_len)
        return _checked_ids(ids, vocab_size, max_model_len, f"the text {shown(text)}"), text
    if isinstance(prompt, list | tuple):
        prompt = {"prompt_token_ids": prompt}
    if not isinstance(prompt, Mapping) or set(prompt) - {"cache_salt", "tenant"} != {"prompt_token_ids"}:
        got = f"a mapping with keys {sorted(map(str, prompt))}" if isinstance(prompt, Mapping) else shown(prompt)
        raise InvalidRequestError(f"a prompt is text or {{'prompt_token_ids': [...]}} or a list of ids, got {got}.")
    return _checked_ids(prompt["prompt_token_ids"], vocab_size, max_model_len, "an empty list of ids"), None


def cache_salt_of(prompt: Prompt) -> str:
    """The prompt's own salt, as `Request.cache_salt`; "" if it has none.

    Raises:
        InvalidRequestError: It is no text.
    """
    return _text_beside(prompt, "cache_salt")


def tenant_of(prompt: Prompt) -> str:
    """Whose the prompt says it is, as `Request.tenant`; raises as `cache_salt_of`."""
    return _text_beside(prompt, "tenant")


def _text_beside(prompt: Prompt, name: str) -> str:
    return checked(name, prompt.get(name, ""), TEXT) if isinstance(prompt, Mapping) else ""


def _checked_ids(given: Any, vocab_size: int, max_model_len: int | None, source: str) -> tuple[int, ...]:
    try:
        listed = tuple(items_of(given))
    except TypeError as error:
        raise InvalidRequestError(
            f"prompt_token_ids must be a list of token ids, whole numbers in [0, {vocab_size}), got {shown(given)}."
        ) from error
    if not listed:
        raise InvalidRequestError(f"the prompt must have at least one token, got none from {source}.")
    if max_model_len is not None and len(listed) >= max_model_len:
        raise prompt_too_long(f"{len(listed)} tokens", max_model_len)
    if set(map(type, listed)) == {int} and min(listed) >= 0 and max(listed) < vocab_size:
        return listed
    return tuple(_checked_id(token_id, position, vocab_size) for position, token_id in enumerate(listed))


def _checked_id(given: Any, position: int, vocab_size: int) -> int:
    try:
        token_id = read_int(given)
        if 0 <= token_id < vocab_size:
            return token_id
    except TypeError:
        pass
    raise InvalidRequestError(
        f"token ids must be whole numbers in [0, {vocab_size}), the model's vocabulary; got {shown(given)} at position "
        f"{position}. Was the prompt made with another model's tokenizer?"
    )


def check_params(params: SamplingParams, codec: TextCodec | None, vocab_size: int) -> None:
    """Raises InvalidRequestError for what are no parameters, and for a stop that could never be met."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling parameters must be SamplingParams(...), got {shown(params)}.")
    if params.stop and codec is None:
        raise InvalidRequestError(
            f"stop strings need a tokenizer, and there is none (skip_tokenizer_init), got {shown(list(params.stop))}; "
            f"use stop_token_ids."
        )
    if params.logit_bias and (highest := params.logit_bias[-1][0]) >= vocab_size:  # in order
        raise InvalidRequestError(f"logit_bias must be of tokens in the vocabulary, [0, {vocab_size}), got {highest}.")
    for token_id in params.stop_token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"stop_token_ids must be in the vocabulary, [0, {vocab_size}), got {token_id}: it could never stop."
            )
    if codec is not None and params.skip_special_tokens:
        for stop in params.stop:
            _check_stop(stop, codec)


def _check_stop(stop: str, codec: TextCodec) -> None:
    """Raises InvalidRequestError for a special token's text with other text beside it."""
    for token_id in codec.encode(stop):
        text = codec.decode([token_id], skip_special_tokens=False)
        # Twice, because a single space may be stripped.
        if text and text in stop and text != stop and not codec.decode([token_id] * 2, skip_special_tokens=True):
            raise InvalidRequestError(
                f"stop={shown(stop)} could never be met, because skip_special_tokens leaves {shown(text)} out of the "
                f"text. Stop at that token alone, by its text or by its id in stop_token_ids, or set "
                f"skip_special_tokens=False."
            )


def compile_grammar(params: SamplingParams, guidance: Any) -> Grammar | None:
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
    grammar: Grammar = guidance.compile(params)
    return grammar
