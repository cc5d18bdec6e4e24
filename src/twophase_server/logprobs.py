"""Log-probabilities in OpenAI's two formats: the format of chats, and the older format of completions."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, final

from twophase.core.request import TokenLogprobs
from twophase.engine.detokenizer import REPLACEMENT_CHARACTER
from twophase.model.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no -inf; OpenAI and vLLM write this


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


def chat_logprobs(entries: Sequence[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    content = [
        {
            **_chat_token(entry.token_id, entry.logprob, texts),
            "top_logprobs": [_chat_token(token_id, logprob, texts) for token_id, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    return {"token": texts.of(token_id), "logprob": max(logprob, LEAST), "bytes": texts.bytes_of(token_id)}


def completion_logprobs(
    entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int], texts: TokenTexts, offset: int = 0
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion.

    Args:
        entries: One per token; None for a prompt's first token, which has no context.
        token_ids: The tokens.
        offset: Characters of the text before the first token.
    """
    tokens = [texts.of(token_id) for token_id in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [None if entry is None else max(entry.logprob, LEAST) for entry in entries],
        "top_logprobs": [None if entry is None else _by_text(entry, texts) for entry in entries],
        "text_offset": offsets,
    }


def _by_text(entry: TokenLogprobs, texts: TokenTexts) -> dict[str, float]:
    """The likeliest tokens, best first, and the drawn token."""
    found: dict[str, float] = {}
    for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
        found.setdefault(texts.of(token_id), max(logprob, LEAST))
    return found
