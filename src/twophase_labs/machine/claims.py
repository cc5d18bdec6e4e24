"""Numbers and comparisons in a lab's prose that nothing above them produces.

    python -m twophase_labs.machine.claims 01

A number in prose should be printed by a cell above it, be set in code, stand in a formula, in a code span or in an
exercise's own statement, follow from two others of its sentence, or have its source beside it. A comparison ('doubles',
'most of') should come after a cell of its section that shows something. The outputs are those of the solved notebook,
so that a number which only this machine's noise produced is found when the notebook is built the next time.

What this cannot see: whether the cell that printed a number is the one that the sentence means; numbers that only a
figure shows; numbers in words ('two blocks'); whole numbers up to 12 without a unit, which mostly count what was just
listed; whether a comparison is true, or goes the right way. A reader still has to ask 'says who?'.

Exceptions stand in the chapter's module `claims`: ALLOWED = {"part of the sentence": "why it may stand"}. One that
matches nothing is told too.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from twophase_labs.machine.lab import Lab, Workbook, WorkbookError
from twophase_labs.machine.notebooks import nbformat
from twophase_labs.machine.rules import BOX
from twophase_labs.machine.sections import Part, Section

MOST_COUNTED = 12
UNITS = (
    r"%|×|x\b|ms\b|µs\b|s\b|seconds?\b|minutes?\b|[KMGT]i?B\b|bytes?\b|bits?\b|[GT]?FLOPs?\b|GFLOP/s|[GT]B/s|"
    r"tokens? (?:a|per)\b|times\b|percent\b|points?\b"
)
# Of SmolLM2-135M: millions of weights, and what its configuration says of tokens, layers and widths.
MODEL = (135.0, 49152.0, 30.0, 576.0, 1536.0)
WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eight": 8, "nine": 9, "ten": 10, "twelve": 12}
# Not part of a name (H100, fp16, 0.11.0, SmolLM2-135M), an exercise (1.3) or a longer number.
NUMBER = re.compile(rf"(?<![\w.,/-])(?P<value>\d[\d,]*(?:\.\d+)?)(?![\w/]|\.\d|-[A-Za-z])(?:\s?(?P<unit>{UNITS}))?")
NAMED = re.compile(
    r"(?:\b(?:exercises?|labs?|sections?|chapters?|steps?|parts?|cells?|lines?|blanks?|equations?|figures?|tables?|"
    r"layers?|heads?|positions?|blocks?|slots?|sequences?|rows?|columns?|versions?|Python|PyTorch|CUDA|Triton|base)\s+"
    r"(?:\d[\d,.]*(?:,| and| to|–|-)\s*)*)$",
    re.IGNORECASE,
)
NEAR_OPERATOR = re.compile(r"[=×·+*/^≈<>≤≥]\s?$")
BEFORE_OPERATOR = re.compile(r"\s?[=×·+*/^≈<>≤≥]")
YEAR = re.compile(r"(?:19|20)\d\d")
COMPARISON = re.compile(
    r"\b(?:doubl(?:es|ed)|halv(?:es|ed)|tripl(?:es|ed)|twice|nearly|most of|almost (?:all|none|nothing)|"
    r"a (?:third|quarter|tenth|fraction) of|times (?:faster|slower|more|less|as|larger|smaller)|orders? of magnitude)\b"
)
SOURCE = re.compile(r"\]\(https?://|arXiv:\d{4}\.\d{5}")
CODE_OR_FORMULA = re.compile(r"`[^`\n]+`|\$[^$]+\$")
IN_OUTPUT = re.compile(r"-?\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
SCALES = (1, *(base**power for base in (1000, 1024) for power in (1, 2, 3, 4)))


@dataclass(frozen=True)
class Claim:
    """A sentence that says something nothing above it produces."""

    cell: int
    what: str
    sentence: str

    def __str__(self) -> str:
        return f"cell {self.cell}: {self.what!r}: {self.sentence}"


def unsupported(lab: Lab) -> list[Claim]:
    """All claims of the lab's prose that no cell above, formula, statement or source supports.

    Raises:
        WorkbookError: the solved notebook is not that of the source.
    """
    outputs = _outputs(lab)
    found: list[Claim] = []
    known = set(MODEL)
    for section in lab.sections:
        known |= _numbers_in("\n".join(part.text for part in section.parts if part.kind == "code"))
        found += _in_section(section, outputs, known)
    return found


def _in_section(section: Section, outputs: Mapping[int, str], known: set[float]) -> Iterator[Claim]:
    """`known` is what cells above have printed; the section adds to it."""
    has_shown = False
    for part in section.parts:
        if part.kind == "code":
            text = outputs.get(part.cell, "")
            has_shown |= bool(text)
            known |= _numbers_in(text)
            continue
        here = known | _numbers_in(" ".join(CODE_OR_FORMULA.findall(part.text)))
        for sentence in _sentences(part):
            told = [match[0] for match in NUMBER.finditer(sentence) if not _is_supported(match, sentence, here)]
            if not has_shown:
                told += [match[0] for match in COMPARISON.finditer(sentence)]
            yield from (Claim(part.cell, what.strip(), sentence) for what in told)


def _is_supported(match: re.Match[str], sentence: str, known: set[float]) -> bool:
    text, unit = match["value"].rstrip(","), match["unit"]
    before, after = sentence[: match.start()], sentence[match.end("value") :]
    value, decimals = float(text.replace(",", "")), len(text.partition(".")[2])
    return (
        (value == int(value) <= MOST_COUNTED and not unit)
        or NAMED.search(before) is not None
        or YEAR.fullmatch(text) is not None
        or NEAR_OPERATOR.search(before) is not None
        or BEFORE_OPERATOR.match(after) is not None
        or _is_among(value, decimals, known)
        or _is_arithmetic(value, decimals, f"{before} {after}")
    )


def _is_among(value: float, decimals: int, known: set[float]) -> bool:
    """Whether one of the numbers, in whatever unit, reads so when it is rounded."""
    return any(
        round(number * factor, decimals) == value
        for number in known
        for factor in (*(1 / scale for scale in SCALES), *SCALES[1:4], 100)
    )


def _is_arithmetic(value: float, decimals: int, rest: str) -> bool:
    """Whether two other numbers of the sentence give it: '42 tokens, three rows each: 126 rows'."""
    others = [float(match["value"].rstrip(",").replace(",", "")) for match in NUMBER.finditer(rest)]
    others += [float(WORDS[word]) for word in re.findall(r"[a-z]+", rest.lower()) if word in WORDS]
    results = [r for a, b in combinations(others, 2) for r in (a * b, a + b, abs(a - b))]
    results += [100 * a / b for a in others for b in others if b] + [a / b for a in others for b in others if b]
    return any(round(result, decimals) == value for result in results)


def _numbers_in(text: str) -> set[float]:
    return {abs(float(match[0].replace(",", "").replace("_", ""))) for match in IN_OUTPUT.finditer(text)}


def _sentences(part: Part) -> Iterator[str]:
    """Of a cell's prose, without what needs no support: statements of exercises, boxes with sources, formulas, code."""
    text = part.text.partition("<!-- card")[0]
    text = BOX.sub(lambda box: "" if SOURCE.search(box[0]) else box[0], text)
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]+`", "`code`", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*|>] )", text):
        lines = [line for line in paragraph.split("\n") if not line.startswith("#")]
        joined = re.sub(r"^\s*(?:\d+\.|[-*>|])\s+", "", " ".join(lines).strip())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*_(\[`])", joined):
            if sentence and not SOURCE.search(sentence):
                yield sentence


def _outputs(lab: Lab) -> dict[int, str]:
    """What each code cell shows, as text; 'a figure' of a picture."""
    path = lab.source.with_suffix(".ipynb")
    if not path.exists():
        raise WorkbookError(f"{path.name} is not there; build it first")
    cells: Sequence[Any] = nbformat.read(path, as_version=4).cells
    own = lab.notebook.cells
    if len(cells) != len(own) or any(
        a.source != b.source for a, b in zip(cells, own, strict=True) if b.cell_type == "code"
    ):
        raise WorkbookError(f"{path.name} is not built from {lab.source.name} as it is now; build it first")
    return {
        index: "\n".join(_text_of(output) for output in cell.outputs)
        for index, cell in enumerate(cells)
        if cell.cell_type == "code"
    }


def _text_of(output: Any) -> str:
    data = output.get("data", {})
    html = re.sub(
        r"<[^>]+>", " ", re.sub(r"<(style|script|svg).*?</\1>", "", data.get("text/html", ""), flags=re.DOTALL)
    )
    figure = "a figure" if any(kind.startswith("image/") for kind in data) else ""
    return "\n".join([output.get("text", ""), data.get("text/markdown", ""), html, data.get("text/plain", ""), figure])


def problems(lab: Lab) -> list[str]:
    """Claims that have no exception, and exceptions that stand for no sentence.

    An exception may be without use for once: a time that a cell above measured happens to be the number.
    """
    allowed = _allowed_in(lab)
    told = [str(claim) for claim in unsupported(lab) if not any(part in claim.sentence for part in allowed)]
    prose = [part for section in lab.sections for part in section.parts if part.kind != "code"]
    said = [sentence for part in prose for sentence in _sentences(part)]
    stale = [part for part in allowed if not any(part in sentence for sentence in said)]
    return told + [f"ALLOWED in {lab.package}.claims: no sentence has {part!r}" for part in stale]


def _allowed_in(lab: Lab) -> Mapping[str, str]:
    name = f"{lab.package}.claims"
    if not lab.has_exercises or importlib.util.find_spec(name) is None:
        return {}
    allowed: Mapping[str, str] = importlib.import_module(name).ALLOWED
    return allowed


def main(argv: list[str]) -> int:
    workbook = Workbook.find()
    try:
        labs = [workbook.lab(number) for number in argv] or [
            lab for lab in workbook.labs.values() if lab.minutes is not None
        ]
        told = [f"{lab.source.name}, {problem}" for lab in labs for problem in problems(lab)]
    except WorkbookError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(told) or "every claim has its cell")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
