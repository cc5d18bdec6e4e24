"""Special tokens written out in a message are text: only the chat template's own special tokens control the model."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import InvalidRequestError

# Unicode's private use: no template changes such a character, whether it trims or changes the case.
_PLACES, _MARKS, _NONCE = range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900)


@final
class SpecialText:
    """Encodes conversations whose contents have the text of special tokens. Immutable.

    The library takes all special tokens in a text as such, or none. `tokenizer` therefore takes none, and knows an
    unguessable mark for each special token: the template's own special tokens are written as marks, the contents' as
    ordinary text.

    Args:
        fast: The model's tokenizer.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        added = [token for token in fast.get_added_tokens_decoder().values() if token.special]
        self._specials = sorted(added, key=lambda token: -len(token.content))  # one may be a prefix of another
        nonce = "".join(chr(secrets.choice(_NONCE)) for _ in range(10))
        self._mark_of = {each.content: nonce + chr(code) for each, code in zip(self._specials, _MARKS, strict=False)}

    def found_in(self, texts: Sequence[str]) -> list[str]:
        """Special tokens written out in one of the texts."""
        return [token.content for token in self._specials if any(token.content in text for text in texts)]

    @cached_property
    def tokenizer(self) -> FastTokenizer:
        """The vocabulary with marks: for 50,000 tokens it takes a tenth of a second to make."""
        marked = FastTokenizer.from_str(self._fast.to_str())
        marked.encode_special_tokens = True
        for each in self._specials:
            mark = self._mark_of[each.content]
            marked.add_tokens([AddedToken(mark, lstrip=each.lstrip, rstrip=each.rstrip, normalized=False)])
        return marked

    def render(self, messages: Sequence[Any], found: Sequence[str], template: Callable[[Sequence[Any]], str]) -> str:
        """Prompt text for `tokenizer`, from a chat template and messages in which the special tokens `found` occur."""
        texts = "".join(texts_of(messages))
        free = (place for place in map(chr, _PLACES) if place not in texts)
        place_of = dict(zip(found, free, strict=False))
        rendered = template(_with_texts(messages, lambda text: _replaced(text, place_of)))
        text_of = {place: text for text, place in place_of.items()}
        text_of |= {
            _in_json(place): _in_json(text) for place, text in text_of.items()
        }  # as `tojson` writes both in ASCII
        return _replaced(_replaced(rendered, self._mark_of), text_of)

    def ids(self, encoded: Sequence[int]) -> list[int]:
        """Token ids, from ids of `tokenizer`. Raises InvalidRequestError if content became a special token."""
        id_of_mark, forbidden = self._translation
        if not forbidden.isdisjoint(encoded):
            raise InvalidRequestError(
                "a message has the text of a special token, and this vocabulary cannot write it in ordinary tokens; "
                "take it out, or pass special_tokens_in_content=True to have it as the special token."
            )
        return [id_of_mark.get(token_id, token_id) for token_id in encoded]

    @cached_property
    def _translation(self) -> tuple[dict[int, int], set[int]]:
        """Each mark's id to its special token's; and the ids that no content may have."""
        id_of = {token.content: id_ for id_, token in self.tokenizer.get_added_tokens_decoder().items()}
        unknown = getattr(self._fast.model, "unk_token", None)
        id_of_mark = {id_of[mark]: id_of[text] for text, mark in self._mark_of.items()}
        return id_of_mark, {id_of[text] for text in self._mark_of if text != unknown}


def texts_of(messages: Any) -> list[str]:
    """Every text in the messages. Raises InvalidRequestError for messages that are nested too deep."""
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
    """A copy of `value` with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _with_texts(each, change) for key, each in value.items()}
    return [_with_texts(each, change) for each in value] if isinstance(value, list | tuple) else value
