"""A user's prompt, checked once and turned into token ids; and the checks of parameters that need the vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError, prompt_too_long
from twophase.core.request import SamplingParams
from twophase.core.rules import TEXT, checked, items_of, read_int, shown
from twophase.engine.detokenizer import TextDecoder

# Text, {"prompt": text} or {"prompt_token_ids": [...]}, "cache_salt" besides; or token ids, as they are.
Prompt = str | Mapping[str, Any] | Sequence[int]


@runtime_checkable
class TextCodec(TextDecoder, Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str, *, max_model_len: int | None = None) -> list[int]: ...


class ParsedPrompt(NamedTuple):
    """A checked prompt; `text` is None where token ids were given."""

    token_ids: tuple[int, ...]
    text: str | None
    cache_salt: str
    tenant: str


def parse_prompt(
    prompt: Prompt,
    codec: TextCodec | None,
    vocab_size: int,
    max_model_len: int | None = None,
    cache_salt: str = "",
    tenant: str = "",
) -> ParsedPrompt:
    """Check a prompt and encode its text.

    Args:
        prompt: Text, {"prompt": ...} or {"prompt_token_ids": [...]}, the latter two with a "cache_salt" and a "tenant"
            if wanted; or token ids.
        cache_salt, tenant: See `Request`; they override the prompt's own.
        max_model_len: Longer prompts are refused before their ids are checked; None: unlimited.

    Raises:
        InvalidRequestError: The prompt is neither text nor a list nor a mapping with one of "prompt" and
            "prompt_token_ids"; it is text and there is no tokenizer; it is empty or too long; an id is not in the
            vocabulary; or its salt or tenant is not text.
    """
    name, given = 'prompt["prompt"]', prompt
    if isinstance(prompt, str):
        name, given = "a prompt", {"prompt": prompt}
    elif isinstance(prompt, list | tuple):
        given = {"prompt_token_ids": prompt}
    kind = set(given) - {"cache_salt", "tenant"} if isinstance(given, Mapping) else set()
    if not isinstance(given, Mapping) or kind not in ({"prompt"}, {"prompt_token_ids"}):
        got = f"a mapping with keys {sorted(map(str, given))}" if isinstance(given, Mapping) else shown(given)
        raise InvalidRequestError(f"a prompt is text or {{'prompt_token_ids': [...]}} or a list of ids, got {got}.")
    salt = checked("cache_salt", cache_salt, TEXT) or checked("cache_salt", given.get("cache_salt", ""), TEXT)
    tenant = checked("tenant", tenant, TEXT) or checked("tenant", given.get("tenant", ""), TEXT)
    text, ids, source = None, given.get("prompt_token_ids"), "an empty list of ids"
    if kind == {"prompt"}:
        text = checked(name, given["prompt"], TEXT)
        if codec is None:
            raise InvalidRequestError(
                "the engine has no tokenizer (skip_tokenizer_init, or a model folder without one), so a prompt must be "
                "{'prompt_token_ids': [...]}, got text."
            )
        ids, source = codec.encode(text, max_model_len=max_model_len), f"the text {shown(text)}"
    return ParsedPrompt(_checked_ids(ids, vocab_size, max_model_len, source), text, salt, tenant)


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
    """Raises InvalidRequestError for anything but SamplingParams, and for a stop that could never be met."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling parameters must be SamplingParams(...), got {shown(params)}.")
    if params.stop and codec is None:
        raise InvalidRequestError(
            f"stop strings need a tokenizer, but the engine has no tokenizer (skip_tokenizer_init), got "
            f"{shown(list(params.stop))}; use stop_token_ids."
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
