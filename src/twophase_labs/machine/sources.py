"""Where a fact from elsewhere was read: each chapter's `sources.py` lists them in `SOURCES`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A page or file, the version it speaks of, and what was read there, in our words."""

    url: str
    product: str
    version: str
    says: str
