"""Special tokens written out in a message are text: only those of the chat template itself control the model."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import InvalidRequestError

# Unicode's private use: no template changes such a character, whether it trims or changes the case.
_PLACES = range(0xF0000, 0xFFFFE)
_MARKS = range(0x100000, 0x10FFFE)
_NONCE = [chr(code) for code in range(0xE000, 0xF900)]


class Hidden(NamedTuple):
    """Messages in which a character of its own stands for each special token's text.

    Attributes:
        texts: Character to text.
    """

    messages: list[Any]
    texts: Mapping[str, str]


@final
class SpecialText:
    """Encodes conversations whose contents have the text of special tokens. Immutable.

    The library takes all special tokens in a text as such, or none. So here it takes none, and knows a mark for each
    of them besides, which nobody can guess: the template's own are written as marks, and the contents' as they are.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        special = sorted((token for token in added if token.special), key=lambda token: -len(token.content))
        nonce = "".join(secrets.choice(_NONCE) for _ in range(10))
        self._mark_of = {token.content: nonce + chr(code) for token, code in zip(special, _MARKS, strict=False)}
        self.tokenizer = FastTokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.add_tokens(
            [
                AddedToken(self._mark_of[token.content], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                for token in special
            ]
        )
        id_of = self.tokenizer.token_to_id
        self._id_of_mark = {id_of(mark): id_of(text) for text, mark in self._mark_of.items()}
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._forbidden = {id_of(text) for text in self._mark_of if text != unknown}

    def marked(self, rendered: str, hidden: Hidden) -> str:
        """What the template made of hidden messages, for `tokenizer`."""
        return _replaced(_replaced(rendered, self._mark_of), hidden.texts)

    def ids(self, encoded: Sequence[int]) -> list[int]:
        """Token ids, from those of `tokenizer`.

        Raises:
            InvalidRequestError: The vocabulary has no ordinary tokens for the text of a special one.
        """
        if not self._forbidden.isdisjoint(encoded):
            raise InvalidRequestError(
                "a message has the text of a special token, and this vocabulary cannot write it in ordinary tokens; "
                "take it out, or pass special_tokens_in_content=True to have it as the special token."
            )
        return [self._id_of_mark.get(token_id, token_id) for token_id in encoded]


def hide(messages: Sequence[Any], texts: Sequence[str], found: Sequence[str]) -> Hidden:
    """Messages whose contents have special tokens.

    Args:
        texts: Theirs, by `texts_of`.
        found: The special tokens, the longest first.
    """
    free = (place for place in map(chr, _PLACES) if not any(place in text for text in texts))
    place_of = dict(zip(found, free, strict=False))
    hidden = _with_texts(messages, lambda text: _replaced(text, place_of))
    return Hidden(hidden, {place: special for special, place in place_of.items()})


def texts_of(messages: Any) -> list[str]:
    """Every text in them.

    Raises:
        InvalidRequestError: They are nested too deep.
    """
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    try:
        _with_texts(messages, note)
    except RecursionError as error:
        raise InvalidRequestError("messages must not be nested as deep as these are.") from error
    return texts


def _replaced(text: str, new_of: Mapping[str, str]) -> str:
    """In the mapping's order, so that of two texts the longer one is found where it comes first."""
    for old, new in new_of.items():
        text = text.replace(old, new)
    return text


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Messages, with each text in them changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _with_texts(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(each, change) for each in value]
    return value
