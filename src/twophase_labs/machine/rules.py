"""Rules for a lab's text: sections with minutes and takeaways, few blanks, whole functions, sources named.

`problems(lab)` names what breaks one. They are told when a lab is built, and fail `build --check` and the tests.
"""

import doctest
import importlib.util
import re
from collections.abc import Iterator

from twophase_labs.machine.exercise import MAX_HINTS, Exercise
from twophase_labs.machine.lab import Lab
from twophase_labs.machine.sections import Section
from twophase_labs.machine.sources import Source

MAX_FIRST_LINES, MAX_BLANKS = 12, 6
NUM_EXAMPLES = 2

TAKEAWAY = re.compile(r"^\*\*Takeaway\.\*\* \S", re.MULTILINE)
# These measure nothing that could be taken away.
WITHOUT_TAKEAWAY = re.compile(
    r"knowledge check|glossary|the map|the course|way on|what next|further|reading|sources|before you", re.IGNORECASE
)
BOX = re.compile(r"^> \*\*In production, 2026\.\*\*.*(?:\n>.*)*", re.MULTILINE)
LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
SHAPE = re.compile(r"\[[A-Za-z_]\w*(?:, *[\w*+/. -]+)*\]|\([A-Z]\w*(?:, *[\w*+/. -]+)*,?\)")
UNIT = re.compile(
    r"\b(?:bytes?|bits?|[KMG]i?B|tokens?|seconds?|milliseconds?|ms|blocks?|slots?|elements?|positions?|heads?|steps?|"
    r"FLOPs?|requests?|ids?|logits|probabilit(?:y|ies)|shapes?)\b"
)


def problems(lab: Lab) -> list[str]:
    """What an author has to change, in words; none is good."""
    found = [*_sizes(lab), *_sections(lab), *_boxes(lab)]
    found += [p for e in lab.exercises.values() if lab.is_open(e.id) for p in _open(lab, e)]
    return [f"{lab.source.name}: {problem}" for problem in found]


def _sizes(lab: Lab) -> Iterator[str]:
    first = next((cell.source for cell in lab.notebook.cells if cell.cell_type == "code"), "")
    num_lines = sum(bool(line.strip()) for line in first.split("\n"))
    if num_lines > MAX_FIRST_LINES:
        yield f"the first code cell has {num_lines} lines; it shows the surprise in {MAX_FIRST_LINES}"
    for i, template in lab.templates.items():
        if len(template.blanks) > MAX_BLANKS:
            yield f"exercise {i} has {len(template.blanks)} blanks; {MAX_BLANKS} at most"


def _sections(lab: Lab) -> Iterator[str]:
    for section in lab.sections[1:]:
        if section.minutes is None:
            yield f"section {section.title!r} says no minutes: `<!-- minutes: 14 -->` under its heading"
        if _measures(section) and not TAKEAWAY.search(section.prose):
            yield f"section {section.title!r} has no '**Takeaway.** One quantified sentence.'"


def _measures(section: Section) -> bool:
    return section.has_code and not WITHOUT_TAKEAWAY.search(section.title)


def _boxes(lab: Lab) -> Iterator[str]:
    known = {source.url for source in sources_of(lab)}
    for section in lab.sections:
        if section.prose.count("**In production") != len(BOX.findall(section.prose)):
            yield f"section {section.title!r}: a box begins '> **In production, 2026.**'"
        for box in BOX.findall(section.prose):
            links = LINK.findall(box)
            if not links:
                yield f"section {section.title!r}: the box 'In production, 2026' links to no source"
            for link in links:
                if link not in known:
                    yield f"section {section.title!r}: {link} is not in SOURCES of {lab.package}.sources"


def sources_of(lab: Lab) -> tuple[Source, ...]:
    """SOURCES of the chapter's module `sources`, if there is one."""
    name = f"{lab.package}.sources"
    if not lab.has_exercises or importlib.util.find_spec(name) is None:
        return ()
    return tuple(importlib.import_module(name).SOURCES)


def _open(lab: Lab, exercise: Exercise) -> Iterator[str]:
    docstring = lab.templates[exercise.id].docstring
    where = f"open exercise {exercise.id}:"
    if not SHAPE.search(docstring) and not UNIT.search(docstring):
        yield f"{where} its docstring names no shape, such as [B, T], and no unit"
    examples = [example for example in doctest.DocTestParser().get_examples(docstring) if example.want]
    if len(examples) < NUM_EXAMPLES:
        yield f"{where} its docstring has {NUM_EXAMPLES} examples with a result (>>>) or more, found {len(examples)}"
    if len(exercise.hints) != MAX_HINTS:
        yield f"{where} it has {len(exercise.hints)} hints; {MAX_HINTS}, the last a skeleton"
    elif exercise.hints[-1].count("\n") < 2:
        yield f"{where} its last hint is no skeleton: code of several lines"
