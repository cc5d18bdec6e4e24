"""From tokens to text, one token at a time: whole characters only, and nothing that may become a stop string."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import Protocol, final, runtime_checkable

from twophase.core.sampling_params import SamplingParams

REPLACEMENT_CHARACTER = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character

# A character has at most 4 bytes, so that many tokens of a byte each; an incomplete one has at most 3.
MAX_CHARACTER_TOKENS = 4

# Tokens that end in no whole character are kept so long. Twice a character: where the window then begins in
# mid-character, its end still reads as it would behind the whole text.
MAX_PENDING_TOKENS = 2 * MAX_CHARACTER_TOKENS


@runtime_checkable
class TextDecoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


@final
class Detokenizer:
    """The text of one completion. Only the engine calls the methods that change it.

    The text is `decode(prompt + output)` after what it has in common with `decode(prompt)`: U+FFFD with which a prompt
    ends belongs to the prompt, unless the output completes the character. Each step costs the same however long the
    text is, because only the newest tokens are decoded:

        [ context, ends in a whole character | pending: from there to the newest token ]

    The context tells a decoder of SentencePiece kind that this is not the start of a text, where it would strip a
    space. What the pending tokens read as is released as soon as no later token can change it: all but U+FFFD at the
    end. When it ends in a whole character, the pending tokens become the context. And what is released:

        [ released text | held back: a stop string may be starting ]

    A decoder with byte tokens (Llama 2's `ByteFallback`) makes U+FFFD of every byte in a run of them that is not all
    valid, so that one wrong byte unmakes the characters before it. What has been released cannot be taken back; here
    whole characters stand, and only the bytes that are none become U+FFFD.

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
        self._context, self._pending = self._split(prompt_token_ids)
        if may_end is not None:
            self._pending = []  # a guided text stands for itself: it completes nothing of the prompt's
        self._context_text = self._decode(self._context)
        self._read_text = self._read(self._pending)  # what the pending tokens read as, so far
        self._counted = self._read_text  # the part of it that is released, or the prompt's
        self._pieces: list[str] = []
        self._held = ""
        self._num_tokens = 0

    @property
    def text(self) -> str:
        """What has been released: it never changes afterwards, it only grows."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def append(self, token_id: int) -> str | None:
        """Add a token; returns the stop string that it completed, if it did. Nothing may be added after that."""
        self._num_tokens += 1
        before = self._read_text
        self._pending.append(token_id)
        self._read_text = self._read(self._pending)
        if self._read_text == before and not self._has_text(token_id):
            self._pending.pop()
            return self._stop_at(token_id)
        num_last = len(self._pending)
        if not is_whole(self._read_text):
            num_last = self._split_off_character()
        piece = self._count(self._read_text.rstrip(REPLACEMENT_CHARACTER))
        if is_whole(self._read_text):
            self._context, self._pending = self._pending[-num_last:], []
            self._context_text, self._read_text, self._counted = self._decode(self._context), "", ""
        elif len(self._pending) > MAX_PENDING_TOKENS:
            piece += self._drop_oldest()
        return self._add_text(piece)

    def finish(self) -> str | None:
        """Release what is held back: no more tokens will come, so half a character is U+FFFD for good.

        Returns the stop string that this completed, if it did.
        """
        matched = self._add_text(self._count(self._read_text))
        self._pieces.append(self._held)
        self._held = ""
        return matched

    def _stop_at(self, token_id: int) -> str | None:
        """Whether a special token that is left out of the text is a stop string by itself."""
        stop = self._decoder.decode([token_id], skip_special_tokens=False) if self._params.stop else ""
        is_stop = stop in self._params.stop and self._num_tokens > self._params.min_tokens
        if not is_stop or not (self._may_end is None or self._may_end(self.text + self._held)):
            return None
        matched = self.finish()
        if matched is None and self._params.include_stop_str_in_output:
            self._pieces.append(stop)
        return stop if matched is None else matched

    def _split(self, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
        """Context and pending tokens at the end of the prompt, which may end in an incomplete character."""
        window = list(islice(filter(self._has_text, reversed(prompt)), MAX_PENDING_TOKENS))[::-1]
        for end in range(len(window), max(len(window) - MAX_CHARACTER_TOKENS, 0), -1):
            for start in range(end):  # tokens of a byte each read as nothing whole unless they begin a character
                if is_whole(self._decode(window[start:end])):
                    return window[start:end], window[end:]
        return [], window

    def _has_text(self, token_id: int) -> bool:
        """False for a special token that is left out. Twice, because a single space may be stripped."""
        return bool(self._decode([token_id, token_id]))

    def _read(self, token_ids: list[int]) -> str:
        """What these tokens read as behind the context. Where they would change its text they stand alone."""
        text = self._decode(self._context + token_ids)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(token_ids)

    def _split_off_character(self) -> int:
        """Find the whole character that the last tokens make, if only bytes before it are none; how many tokens it is.

        Only a decoder with byte tokens hides one: elsewhere what ends in U+FFFD does so wherever it begins.
        """
        for length in range(1, min(MAX_CHARACTER_TOKENS, len(self._pending) - 1) + 1):
            character = self._read(self._pending[-length:])
            if is_whole(character):
                self._read_text = self._read(self._pending[:-length]) + character
                return length
        return 0

    def _drop_oldest(self) -> str:
        """Forget the oldest pending token, which cannot be completed any more; returns what that releases."""
        num_open = len(self._read_text) - len(self._counted)
        del self._pending[0]
        text = self._read(self._pending)
        num_released = max(0, num_open - len(text))
        released = self._read_text[len(self._counted) :][:num_released]
        self._read_text, self._counted = text, text[: len(text) - num_open + num_released]
        return released

    def _count(self, text: str) -> str:
        """`text` is what the pending tokens read as, or a beginning of it; returns what of it is new."""
        start = len(commonprefix([self._counted, text]))  # noqa: RUF071
        if start == len(text):
            return ""
        self._counted = text
        return text[start:]

    def _first_stop(self, text: str) -> tuple[int, str | None]:
        """The first stop string in `text` that may end the completion, and where it ends; (0, None) if none does."""
        for end, stop in matches(text, self._params.stop):
            if self._may_end is None or self._may_end(self.text + text[: end - len(stop)]):
                return end, stop
        return 0, None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._params.skip_special_tokens)

    def _add_text(self, piece: str) -> str | None:
        if self._num_tokens <= self._params.min_tokens:
            self._pieces.append(piece)  # too early to stop: no string begins here
            return None
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


def is_whole(text: str) -> bool:
    """Whether there is text, and it ends in a whole character (as far as can be seen: U+FFFD may be one)."""
    return bool(text) and not text.endswith(REPLACEMENT_CHARACTER)


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
