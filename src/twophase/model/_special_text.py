"""Special tokens written out in a message are text: only those of the chat template itself control the model."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import InvalidRequestError

# Unicode's private use: no template changes such a character, whether it trims or changes the case.
_PLACES, _MARKS, _NONCE = range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900)


@final
class SpecialText:
    """Encodes conversations whose contents have the text of special tokens. Immutable.

    The library takes all special tokens in a text as such, or none. So here it takes none, and knows a mark for each
    of them besides, which nobody can guess: the template's own are written as marks, and the contents' as they are.
    """

    def __init__(self, tokenizer: FastTokenizer, specials: Sequence[AddedToken]) -> None:
        nonce = "".join(chr(secrets.choice(_NONCE)) for _ in range(10))
        self._mark_of = {each.content: nonce + chr(code) for each, code in zip(specials, _MARKS, strict=False)}
        self.tokenizer = FastTokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True
        for each in specials:
            mark = AddedToken(self._mark_of[each.content], lstrip=each.lstrip, rstrip=each.rstrip, normalized=False)
            self.tokenizer.add_tokens([mark])
        id_of = {token.content: id_ for id_, token in self.tokenizer.get_added_tokens_decoder().items()}
        self._id_of_mark = {id_of[mark]: id_of[text] for text, mark in self._mark_of.items()}
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._forbidden = {id_of[text] for text in self._mark_of if text != unknown}

    def render(self, messages: Sequence[Any], found: Sequence[str], template: Callable[[Sequence[Any]], str]) -> str:
        """What the template makes of messages with special tokens, `found` in them, as text for `tokenizer`."""
        texts = "".join(texts_of(messages))
        free = (place for place in map(chr, _PLACES) if place not in texts)
        place_of = dict(zip(found, free, strict=False))
        rendered = template(_with_texts(messages, lambda text: _replaced(text, place_of)))
        text_of = {place: text for text, place in place_of.items()}
        text_of |= {_in_json(place): _in_json(text) for place, text in text_of.items()}  # of `tojson`, in ASCII
        return _replaced(_replaced(rendered, self._mark_of), text_of)

    def ids(self, encoded: Sequence[int]) -> list[int]:
        """Token ids, from those of `tokenizer`. Raises InvalidRequestError if content became a special token."""
        if not self._forbidden.isdisjoint(encoded):
            raise InvalidRequestError(
                "a message has the text of a special token, and this vocabulary cannot write it in ordinary tokens; "
                "take it out, or pass special_tokens_in_content=True to have it as the special token."
            )
        return [self._id_of_mark.get(token_id, token_id) for token_id in encoded]


def texts_of(messages: Any) -> list[str]:
    """Every text in them. Raises InvalidRequestError if they are nested too deep."""
    texts: list[str] = []
    try:
        _with_texts(messages, texts.append)
    except RecursionError as error:
        raise InvalidRequestError("messages must not be nested as deep as these are.") from error
    return texts


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _replaced(text: str, new_of: Mapping[str, str]) -> str:
    for old, new in new_of.items():
        text = text.replace(old, new)
    return text


def _with_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Messages, with each text in them changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _with_texts(each, change) for key, each in value.items()}
    return [_with_texts(each, change) for each in value] if isinstance(value, list | tuple) else value
