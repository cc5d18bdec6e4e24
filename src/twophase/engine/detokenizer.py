"""From tokens to text, one token at a time: whole characters only, and nothing that may become a stop string."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, final, runtime_checkable

from twophase.core.sampling_params import SamplingParams

REPLACEMENT_CHARACTER = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character

# A character has at most 4 bytes, so that many byte tokens complete it. Beyond that the bytes are simply invalid.
MAX_PENDING_TOKENS = 8

NUM_CONTEXT_TOKENS = 4  # of the prompt; enough for a character that it may end in


@runtime_checkable
class TextDecoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


@final
class Detokenizer:
    """The text of one completion. Only the engine calls the methods that change it.

    Each step costs the same however long the text is: the new token is decoded behind the few tokens before it (which
    tell a decoder of SentencePiece kind that this is not the start of a text, where it would strip a space), and what
    is new is appended.

        [ released text | held back: a stop string may be starting | tokens that do not make whole characters yet ]

    Args:
        decoder: Turns token ids into text.
        params: Stop strings and how to treat them.
        prompt_token_ids: What the output continues.
        may_end: Of a guided text, whether it may end like that; where it may not, a stop string is text like any other.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        may_end: Callable[[str], bool] | None = None,
    ) -> None:
        self._decoder = decoder
        self._params = params
        self._may_end = may_end
        self._window = list(prompt_token_ids[-NUM_CONTEXT_TOKENS:])  # context, then tokens not yet text
        if may_end is not None:
            # A guided text stands for itself: it completes nothing that the prompt has left half written.
            while self._decode().endswith(REPLACEMENT_CHARACTER):
                self._window.pop()
        self._num_context = len(self._window)
        # The prompt may end in half a character, which the first output tokens complete.
        self._context_text = self._decode().rstrip(REPLACEMENT_CHARACTER)
        self._pieces: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """What has been released: it never changes afterwards, it only grows."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def append(self, token_id: int) -> str | None:
        """Add a token; returns the stop string that it completed, if it did. Nothing may be added after that."""
        self._window.append(token_id)
        text = self._decode()
        num_pending = len(self._window) - self._num_context
        if text.endswith(REPLACEMENT_CHARACTER) and num_pending < MAX_PENDING_TOKENS:
            return None
        if text == self._context_text:  # a special token, left out: of no use as context either
            self._window.pop()
            return None
        piece = text[len(self._context_text) :]
        del self._window[: self._num_context]
        self._num_context = len(self._window)
        self._context_text = self._decode()
        return self._add_text(piece)

    def finish(self) -> str | None:
        """Release what is held back: no more tokens will come. Half a character at the end is left out.

        Returns the stop string that the last whole characters completed, if they did.
        """
        piece = self._decode()[len(self._context_text) :].rstrip(REPLACEMENT_CHARACTER)
        matched = self._add_text(piece)
        self._pieces.append(self._held)
        self._held = ""
        return matched

    def _first_stop(self, text: str) -> tuple[int, str | None]:
        """The first stop string in `text` that may end the completion, and where it ends; (0, None) if none does."""
        for end, stop in matches(text, self._params.stop):
            if self._may_end is None or self._may_end(self.text + text[: end - len(stop)]):
                return end, stop
        return 0, None

    def _decode(self) -> str:
        return self._decoder.decode(self._window, skip_special_tokens=self._params.skip_special_tokens)

    def _add_text(self, piece: str) -> str | None:
        # A match can only begin in what is held back: that is the longest end of the text which begins a stop string.
        text = self._held + piece
        end, matched = self._first_stop(text)
        if matched is None:
            num_held = longest_partial_match(text, self._params.stop)
            num_released = len(text) - num_held
        else:
            num_released = end if self._params.include_stop_str_in_output else end - len(matched)
        self._pieces.append(text[:num_released])
        self._held = "" if matched is not None else text[num_released:]
        return matched


def matches(text: str, stops: Sequence[str]) -> list[tuple[int, str]]:
    """Where stop strings are complete as `text` is read from the left; of those that end together the longest first.

    So the result does not depend on how the text is cut into tokens.
    """
    ends = [(start + len(stop), -len(stop), stop) for stop in stops for start in _occurrences(text, stop)]
    return [(end, stop) for end, _, stop in sorted(ends)]


def _occurrences(text: str, stop: str) -> Iterator[int]:
    start = text.find(stop)
    while start >= 0:
        yield start
        start = text.find(stop, start + 1)


def longest_partial_match(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0
