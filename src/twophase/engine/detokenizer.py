"""From tokens to text, one token at a time: whole characters only, and nothing that may become a stop string."""

from collections.abc import Callable, Sequence
from itertools import islice
from os.path import commonprefix
from typing import Any, Protocol, final, runtime_checkable

from twophase.core.request import SamplingParams
from twophase.doors import feature

REPLACEMENT_CHARACTER = "\ufffd"  # a decoder's output for bytes that are not (yet) a character
MAX_CHARACTER_TOKENS = 4  # a character has at most 4 bytes, and a token at least one

# Tokens kept while they do not end in a whole character: enough for two characters, so that their end decodes as in the
# whole text even if they begin in mid-character.
MAX_PENDING_TOKENS = 2 * MAX_CHARACTER_TOKENS

MayEnd = Callable[[str], bool] | None


@runtime_checkable
class TextDecoder(Protocol):
    """The part of a tokenizer that the detokenizer uses."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


@final
class Detokenizer:
    """The text of one completion. Only the engine calls the methods that change it.

    The text is `decode(prompt + output)` without its common prefix with `decode(prompt)`: a U+FFFD at the end of the
    prompt belongs to the prompt, unless the output completes the character. Only the newest tokens are decoded, so a
    step's cost does not depend on the text's length:

        [ context, ends in a whole character | pending: from there to the newest token ]

    The context keeps a decoder of SentencePiece kind from stripping a space as at the start of a text. Pending text is
    released as soon as no later token can change it: all but U+FFFD at its end. When it ends in a whole character, the
    pending tokens become the context.

    A decoder with byte tokens (Llama 2's `ByteFallback`) turns every byte of a run into U+FFFD if one of them is
    invalid. Here whole characters stand, and only stray bytes become U+FFFD. (The library's `DecodeStream` raises an
    error there, and never releases half a character at the end of a text.)

    Args:
        params: Stop strings and how to treat them, and whether special tokens are skipped.
        prompt_token_ids: The tokens that the output continues.
        may_end: For structured outputs, whether a text may end; elsewhere in the text a stop string is ordinary text.
    """

    def __init__(
        self, decoder: TextDecoder, params: SamplingParams, prompt_token_ids: Sequence[int], may_end: MayEnd = None
    ) -> None:
        self._decoder, self._skips_special = decoder, params.skip_special_tokens
        self._context: list[int] = []
        self._pending: list[int] = []
        self._context_text = self._pending_text = self._settled = ""
        for token_id in list(islice(filter(self._has_text, reversed(prompt_token_ids)), MAX_PENDING_TOKENS))[::-1]:
            self._add(token_id)
        if may_end is not None:  # a structured output completes no character of the prompt's
            self._pending, self._pending_text = [], ""
        self._settled = self._pending_text  # the released prefix of the pending text, or the prompt's
        self._pieces: list[str] = []
        self._stops: Any = None
        if params.stop:
            self._stops = feature("stop_strings").StopStrings(decoder, params, may_end, self._pieces)

    @property
    def text(self) -> str:
        """The released text: it only grows."""
        self._pieces[:] = ["".join(self._pieces)]
        return self._pieces[0]

    def append(self, token_id: int) -> str | None:
        """Add a token; returns the stop string that the token completed. Nothing may be added after a stop string."""
        piece = self._add(token_id)
        if self._stops is not None:
            return self._stops.append(token_id, piece, lambda: self._settle(self._pending_text))
        self._pieces.append(piece or "")
        return None

    def finish(self) -> str | None:
        """Release all text, an incomplete character as U+FFFD; returns the stop string that this text completed."""
        rest = self._settle(self._pending_text)
        if self._stops is not None:
            return self._stops.finish(rest)
        self._pieces.append(rest)
        return None

    def _add(self, token_id: int) -> str | None:
        """Add a pending token; returns the text that no later token can change, or None for a token without text."""
        before, self._pending_text = self._pending_text, self._read([*self._pending, token_id])
        if self._pending_text == before and not self._has_text(token_id):
            return None
        self._pending.append(token_id)
        num_last = len(self._pending) if _is_whole(self._pending_text) else self._find_character()
        piece = self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))
        if num_last:
            self._context, self._pending = self._pending[-num_last:], []
            self._context_text, self._pending_text, self._settled = self._decode(self._context), "", ""
        elif len(self._pending) > MAX_PENDING_TOKENS:
            piece += self._drop_oldest()
        return piece

    def _has_text(self, token_id: int) -> bool:
        """False for a skipped special token. Decoded twice in a row, because a single space may be stripped."""
        return bool(self._decode([token_id, token_id]))

    def _read(self, token_ids: list[int]) -> str:
        """Text of these tokens behind the context; alone, where they would change the context's text."""
        text = self._decode(self._context + token_ids)
        return text[len(self._context_text) :] if text.startswith(self._context_text) else self._decode(token_ids)

    def _find_character(self) -> int:
        """The number of tokens of the last complete character, when stray bytes precede it; else 0.

        Only a decoder with byte tokens hides a character: elsewhere text ends in U+FFFD wherever it begins.
        """
        for length in range(1, min(MAX_CHARACTER_TOKENS, len(self._pending) - 1) + 1):
            character = self._read(self._pending[-length:])
            if _is_whole(character):
                self._pending_text = self._read(self._pending[:-length]) + character
                return length
        return 0

    def _drop_oldest(self) -> str:
        """Forget the oldest pending token, which no later token can complete; returns the text that this releases."""
        del self._pending[0]
        text = self._read(self._pending)
        num_open = min(len(self._pending_text) - len(self._settled), len(text))
        piece = self._pending_text[len(self._settled) : len(self._pending_text) - num_open]
        self._pending_text, self._settled = text, text[: len(text) - num_open]
        return piece

    def _settle(self, text: str) -> str:
        """Release `text`, the pending text or a beginning of it; returns the part that was not released before."""
        start = len(commonprefix([self._settled, text]))  # noqa: RUF071
        if start < len(text):
            self._settled = text
        return text[start:]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skips_special)


def _is_whole(text: str) -> bool:
    """Whether there is text, and it ends in a whole character (as far as can be seen: U+FFFD may be one)."""
    return bool(text) and not text.endswith(REPLACEMENT_CHARACTER)
