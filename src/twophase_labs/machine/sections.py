"""A lab by its sections: what stands under each `## ` heading, how long it takes, which exercises are in it.

In the source `<!-- minutes: 14 -->` stands under a heading: reading, thinking, exercises and running, all of it. The
notebook shows it as '14 minutes'. What is optional is counted apart: `<!-- minutes: 14 + 8 -->`. What stands before
the first heading says `<!-- opening minutes: 5 -->`, for the map alone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

MINUTES = re.compile(r"^<!-- (?P<opening>opening )?minutes: (?P<core>\d+)(?: \+ (?P<extra>\d+))? -->$", re.MULTILINE)
HEADING = re.compile(r"## (?P<title>.+?)\s*$")
IN_LINKS = "-.,:;!?'&=+@/~"
FENCE = re.compile(r"\s*(```|~~~)")


@dataclass(frozen=True)
class Part:
    """What one cell has of a section. `cell` counts the notebook's cells from 0."""

    cell: int
    kind: Literal["markdown", "code"]
    text: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """What stands from one heading to the next; that before the first heading has no title."""

    title: str
    parts: tuple[Part, ...]

    @property
    def minutes(self) -> int | None:
        """Without what is optional; None if the section does not say."""
        found = MINUTES.search(self.prose)
        return int(found["core"]) if found else None

    @property
    def extra_minutes(self) -> int:
        """Of what stands under 'Going further'."""
        found = MINUTES.search(self.prose)
        return int(found["extra"] or 0) if found else 0

    @property
    def prose(self) -> str:
        return "\n\n".join(part.text for part in self.parts if part.kind == "markdown")

    @property
    def exercises(self) -> tuple[str, ...]:
        """Ids, in order."""
        tags = [tag for part in self.parts for tag in part.tags]
        return tuple(tag.removeprefix("exercise:") for tag in tags if tag.startswith("exercise:"))

    @property
    def link(self) -> str:
        """In markdown, to this section of the same notebook: JupyterLab's name of it has - for spaces."""
        shown = re.sub(r"[`*]", "", self.title).replace(" ", "-")
        return f"[{self.title}](#{quote(shown, safe=IN_LINKS)})"


def sections(cells: Iterable[Mapping[str, Any]]) -> tuple[Section, ...]:
    """The first is what stands before any heading, and may be empty."""
    titles, parts = [""], list[list[Part]]([[]])
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "markdown":
            tags = tuple(cell["metadata"].get("tags", ()))
            parts[-1].append(Part(index, "code", cell["source"], tags))
            continue
        lines: list[str] = []
        is_fenced = False
        for line in cell["source"].split("\n"):
            is_fenced ^= FENCE.match(line) is not None
            heading = HEADING.fullmatch(line) if not is_fenced else None
            if heading:
                if "\n".join(lines).strip():
                    parts[-1].append(Part(index, "markdown", "\n".join(lines)))
                titles.append(heading["title"])
                parts.append([])
                lines = []
            else:
                lines.append(line)
        if "\n".join(lines).strip():
            parts[-1].append(Part(index, "markdown", "\n".join(lines)))
    return tuple(Section(title, tuple(found)) for title, found in zip(titles, parts, strict=True))
