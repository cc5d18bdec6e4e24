"""A user's prompt, checked once and turned into token ids; and the checks of parameters that need the vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError, prompt_too_long
from twophase.core.request import SamplingParams
from twophase.core.rules import TEXT, Rule, checked, items_of, read_int, shown
from twophase.doors import feature
from twophase.engine.detokenizer import TextDecoder

# Text, token ids, {"prompt": text} or {"prompt_token_ids": [...]}; a mapping may also have "cache_salt" and "tenant".
Prompt = str | Mapping[str, Any] | Sequence[int]


@runtime_checkable
class TextCodec(TextDecoder, Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str, *, max_model_len: int | None = None) -> list[int]: ...


def parse_prompt(
    prompt: Prompt,
    codec: TextCodec | None,
    vocab_size: int,
    max_model_len: int | None = None,
    cache_salt: str = "",
    tenant: str = "",
) -> tuple[tuple[int, ...], str | None, str, str]:
    """Check a prompt and encode its text. Returns token ids, the text (None where ids were given), salt and tenant.

    Args:
        cache_salt, tenant: See `Request`; they override the prompt's own.
        max_model_len: Longer prompts are refused before their ids are checked; None: unlimited.

    Raises:
        InvalidRequestError: The prompt is not a `Prompt`; it is text and there is no tokenizer; it is empty or too
            long; an id is not in the vocabulary; or its salt or tenant is not text.
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
    return _checked_ids(ids, vocab_size, max_model_len, source), text, salt, tenant


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
    rule = Rule("", read_int, lambda token_id: 0 <= token_id < vocab_size)
    for position, token_id in enumerate(listed):
        try:
            rule.read(token_id)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"token ids must be whole numbers in [0, {vocab_size}), the model's vocabulary; got {shown(token_id)} "
                f"at position {position}. Was the prompt made with another model's tokenizer?"
            ) from error
    return tuple(map(read_int, listed))


def check_params(params: SamplingParams, codec: TextCodec | None, vocab_size: int) -> None:
    """Raises InvalidRequestError for anything but SamplingParams, and for a stop that could never be met."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling parameters must be SamplingParams(...), got {shown(params)}.")
    if params.stop:
        feature("stop_strings").check_stops(params, codec)
    biased_ids = [token_id for token_id, _ in params.logit_bias]
    for name, token_ids in (("logit_bias", biased_ids), ("stop_token_ids", params.stop_token_ids)):
        if (highest := max(token_ids, default=0)) >= vocab_size:
            raise InvalidRequestError(
                f"{name} must be of tokens in the vocabulary, [0, {vocab_size}), got {highest}, which is never drawn."
            )
