"""Where a fact from elsewhere was read: each chapter's `sources.py` lists them in `SOURCES`; `READ` is the month."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A page or file, and the version of which product it speaks of, or when it was read."""

    version: str
    url: str


def sources(text: str) -> tuple[Source, ...]:
    """One of each line 'product, version: address'."""
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    return tuple(Source(version, url) for version, _, url in lines)
