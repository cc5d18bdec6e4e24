"""Stop strings: the text that ends a completion, found across tokens and cut off."""

from collections.abc import Callable, Sequence
from typing import final

from twophase.core.errors import InvalidRequestError
from twophase.core.request import SamplingParams
from twophase.core.rules import shown
from twophase.engine.detokenizer import TextDecoder
from twophase.engine.request_state import TextCodec


@final
class StopStrings:
    """The end of one completion's text. A stop string may be starting in text that the detokenizer releases:

        [ released text | held back: the beginning of a stop string ]

    Args:
        decoder, params, may_end: See `Detokenizer`.
        released: Gets the pieces of the released text.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        params: SamplingParams,
        may_end: Callable[[str], bool] | None,
        released: list[str],
    ) -> None:
        self._decoder, self._params, self._may_end, self._released = decoder, params, may_end, released
        self._held = ""
        self._num_tokens = 0

    def append(self, token_id: int, piece: str | None, rest: Callable[[], str]) -> str | None:
        """Add a token; returns the stop string that it completed.

        Args:
            piece: The text that the token settled; None: it has no text, because it is special and skipped.
            rest: Settles and returns the text of incomplete characters.
        """
        self._num_tokens += 1
        return self._stop_at(token_id, rest) if piece is None else self._release(piece)

    def finish(self, rest: str) -> str | None:
        """Release all text, the last of it `rest`; returns the stop string that it completed."""
        matched = self._release(rest)
        self._released.append(self._held)
        self._held = ""
        return matched

    def _stop_at(self, token_id: int, rest: Callable[[], str]) -> str | None:
        """The stop string, if a skipped special token is one by itself."""
        stop = self._decoder.decode([token_id], skip_special_tokens=False)
        is_stop = stop in self._params.stop and self._num_tokens > self._params.min_tokens
        if not is_stop or not self._ends_at(self._held):
            return None
        matched = self.finish(rest())
        if matched is None and self._params.include_stop_str_in_output:
            self._released.append(stop)
        return matched or stop

    def _ends_at(self, text: str) -> bool:
        """Whether the completion may end here: with the released text, and this text behind it."""
        return self._may_end is None or self._may_end("".join([*self._released, text]))

    def _release(self, piece: str) -> str | None:
        """Release text, up to a stop string that ends the completion or may be starting; returns that stop string."""
        if self._num_tokens <= self._params.min_tokens:
            self._released.append(piece)  # too early to stop: no stop string begins here
            return None
        text, stops = self._held + piece, self._params.stop
        ends = (each for each in matches(text, stops) if self._ends_at(text[: each[0] - len(each[1])]))
        end, matched = next(ends, (0, None))
        if matched is None:
            num_released = len(text) - longest_partial_match(text, stops)
        else:
            num_released = end if self._params.include_stop_str_in_output else end - len(matched)
        self._released.append(text[:num_released])
        self._held = text[num_released:] if matched is None else ""
        return matched


def matches(text: str, stops: Sequence[str]) -> list[tuple[int, str]]:
    """Ends of stop strings in `text`, read from the left; of stop strings that end together the longest first.

    The order of reading, and not the listing of stop strings, makes the result independent of how tokens cut the text.
    """
    ends = []
    for stop in stops:
        if stop in text:
            starts = (start for start in range(len(text)) if text.startswith(stop, start))
            ends += [(start + len(stop), -len(stop), stop) for start in starts]
    return [(end, stop) for end, _, stop in sorted(ends)]


def longest_partial_match(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in stops)), 0)


def check_stops(params: SamplingParams, codec: TextCodec | None) -> None:
    """Raises InvalidRequestError for stop strings without a tokenizer."""
    if codec is None:
        raise InvalidRequestError(
            f"stop strings need a tokenizer, but the engine has no tokenizer (skip_tokenizer_init), got "
            f"{shown(list(params.stop))}; use stop_token_ids."
        )
