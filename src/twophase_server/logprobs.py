"""Log-probabilities in OpenAI's two formats: the format of chats, and the older format of completions."""

from collections.abc import Sequence
from typing import Any

from twophase.core.request import TokenLogprobs
from twophase_server.token_texts import TokenTexts

LEAST = -9999.0  # JSON has no -inf; OpenAI and vLLM write this


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
