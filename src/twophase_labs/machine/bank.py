"""A bank: the answers that prove one exercise's check.

    BANKS = {
        "3.3": (
            wrong("never refuses", "n > self.num_free", "False", by="runs out without damage"),
            right("no list, just counts", SET_OF_FREE),
        ),
    }

An answer is what differs from the solution: one or several pairs of texts, old and new in turn, where each old text
occurs once in the solved cell; or the text of some blanks by their numbers; or a whole cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from twophase_labs.machine.blanks import Template

Change = Mapping[int, str] | tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """An answer in a bank. `rejected_by` names the property that must reject it; a right answer has None."""

    title: str
    change: Change
    rejected_by: str | None = None

    def source(self, template: Template) -> str:
        """The cell.

        Raises:
            ValueError: an old text does not occur exactly once, or there is no such blank.
        """
        if isinstance(self.change, Mapping):
            return template.filled(self.change)
        if len(self.change) == 1:
            return self.change[0]
        cell = template.filled()
        for old, new in zip(self.change[::2], self.change[1::2], strict=True):
            if cell.count(old) != 1:
                raise ValueError(
                    f"exercise {template.exercise}, {self.title!r}: {old!r} occurs {cell.count(old)} times in the "
                    "solved cell, not once"
                )
            cell = cell.replace(old, new)
        return cell


Bank = tuple[Answer, ...]


def wrong(title: str, *change: str | Mapping[int, str], by: str) -> Answer:
    """An answer that must be rejected, by the property named and so with its hint."""
    return Answer(title, _change(title, change), by)


def right(title: str, *change: str | Mapping[int, str]) -> Answer:
    """Another answer that must pass."""
    return Answer(title, _change(title, change))


def _change(title: str, change: tuple[str | Mapping[int, str], ...]) -> Change:
    if len(change) == 1 and isinstance(change[0], Mapping):
        return change[0]
    texts = tuple(c for c in change if isinstance(c, str))
    if not texts or len(texts) < len(change) or (len(texts) > 1 and len(texts) % 2):
        raise ValueError(f"{title!r}: give pairs of texts, old and new; or blanks by number; or a whole cell")
    return texts
