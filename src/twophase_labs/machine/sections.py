"""A lab by its sections: what stands under each `## ` heading, how long it takes, which exercises are in it.

In the source `<!-- minutes: 14 -->` stands under a heading: reading, thinking, exercises and running, all of it. The
notebook shows it as '14 minutes'. What is optional is counted apart: `<!-- minutes: 14 + 8 -->`. What stands before
the first heading says `<!-- opening minutes: 5 -->`, for the map alone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MINUTES = re.compile(r"^<!-- (?P<opening>opening )?minutes: (?P<core>\d+)(?: \+ (?P<extra>\d+))? -->$", re.MULTILINE)
HEADING = re.compile(r"## (?P<title>.+?)\s*$")
IN_LINKS = "-.,:;!?'&=+@/~"
FENCE = re.compile(r"\s*(```|~~~)")


@dataclass
class Section:
    """What stands from one heading to the next; that before the first heading has no title.

    Attributes:
        prose: Its markdown, without the heading.
        exercises: Ids, in order.
    """

    title: str
    prose: str = ""
    has_code: bool = False
    exercises: tuple[str, ...] = ()

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
    def link(self) -> str:
        """In markdown, to this section of the same notebook: JupyterLab's name of it has - for spaces."""
        shown = re.sub(r"[`*]", "", self.title).replace(" ", "-")
        return f"[{self.title}](#{quote(shown, safe=IN_LINKS)})"


def sections(cells: Iterable[Mapping[str, Any]]) -> tuple[Section, ...]:
    """The first is what stands before any heading, and may be empty."""
    found = [Section("")]
    for cell in cells:
        if cell["cell_type"] != "markdown":
            found[-1].has_code = True
            tags = cell["metadata"].get("tags", ())
            found[-1].exercises += tuple(t.removeprefix("exercise:") for t in tags if t.startswith("exercise:"))
            continue
        is_fenced = False
        for line in cell["source"].split("\n"):
            is_fenced ^= FENCE.match(line) is not None
            if not is_fenced and (heading := HEADING.fullmatch(line)):
                found.append(Section(heading["title"]))
            else:
                found[-1].prose += f"{line}\n"
        found[-1].prose += "\n"
    return tuple(found)
