"""The text of single tokens, as lists of log-probabilities show them."""

from functools import lru_cache
from typing import final

from twophase.engine.detokenizer import REPLACEMENT_CHARACTER
from twophase.model.tokenizer import Tokenizer


@final
class TokenTexts:
    """Token id -> text. Without a tokenizer: 'token_id:42', as vLLM writes it."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._anchor = [] if tokenizer is None else tokenizer.encode("a", add_special_tokens=False)[-1:]
        self.of = lru_cache(maxsize=100_000)(self._find)

    def _find(self, token_id: int) -> str:
        """The token is decoded after another token, because a decoder may strip the space at the start of a text."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        before = self._tokenizer.decode(self._anchor, skip_special_tokens=False)
        text = self._tokenizer.decode([*self._anchor, token_id], skip_special_tokens=False)
        return text.removeprefix(before)

    def bytes_of(self, token_id: int) -> list[int] | None:
        """The token's bytes; None if the token is part of a character and its text does not show them."""
        text = self.of(token_id)
        return None if REPLACEMENT_CHARACTER in text else list(text.encode())
