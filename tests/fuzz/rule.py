"""The rule every fuzzer judges by, and what a broken rule looks like."""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from twophase.core.errors import TwophaseError

MAX_MESSAGE_CHARS = 2000
MAX_REFUSAL_CPU_S = 10  # a refusal takes milliseconds; this is for a slow machine


class FindingError(AssertionError):
    """The rule was broken. The message says by what, and what to repeat it with."""


@contextmanager
def refusing_clearly(what: str) -> Iterator[None]:
    """Let an error that was raised on purpose pass on; turn any other one, or an unclear one, into a finding."""
    begun = time.process_time()
    try:
        yield
    except TwophaseError as error:
        require_clear(str(error), what)
        if time.process_time() - begun > MAX_REFUSAL_CPU_S:
            raise FindingError(
                f"{what}: refused only after {time.process_time() - begun:.1f} s of computing"
            ) from error
        raise
    except FindingError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        raise FindingError(f"{what}: {type(error).__name__} at {where}: {str(error)[:200]}") from error


def require_clear(message: str, what: str) -> None:
    """A message is a sentence that can be printed anywhere."""
    is_sentence = 15 <= len(message) <= MAX_MESSAGE_CHARS and " " in message.strip()
    if not is_sentence or "Traceback" in message:
        raise FindingError(f"{what}: unclear error: {message[:300]!r}")
    try:
        message.encode()
    except UnicodeEncodeError:
        raise FindingError(f"{what}: an error that cannot be printed: {message[:300]!r}") from None


def findings(try_one: Callable[[Random], None], count: int, seed: int) -> list[str]:
    """What `try_one` found with the seeds seed, seed + 1, ...; each line names its seed."""
    found = []
    for each in range(seed, seed + count):
        try:
            try_one(Random(each))
        except FindingError as finding:
            found.append(f"seed {each}: {finding}")
    return found
