"""The words of a lab's texts: those of the glossary, and English ones.

`python -m twophase_labs.machine.wording 01` lists where a lab's prose, the comments and strings of its cells, its
messages and its figures use a word that the glossary has another one for, or a phrase that reads as translated.

Names in code (`page_ids`) and docstrings are not looked at. Of a word with ordinary meanings as well (number, pass,
found, slot) only uses that are certainly the term's are found: this does not spare anybody a reading.

A chapter may have reasons of its own: ALLOWED_WORDS in its module `wording`, patterns and why they stand.
"""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from twophase_labs.machine.glossary import TERMS, Term
from twophase_labs.machine.lab import Lab, Workbook

WORD = r"(?<![\w`-]){}(?![\w`])"

# What readings of the labs found, and its kin.
PHRASES = (
    "dearer", "dearest", "turned away", "makers? means?", "with (?:its|their) signs? turned", "exchanged", "for ever",
    "how wide is", "look how", "honest(?:ly)?", "what is missing to", "takes the longer", "stands? above each other",
    "what production has more", "whoever", "somebody", "whom", "who finds",
)  # fmt: skip

# What may stand all the same, and why.
ALLOWED = {
    r"\bpaged\b|Paged\w+|\bPAGE\w*": "the name of the method, and the constant of Triton kernels",
    r"page tables?|operating system[^.]{0,80}\bpages?\b|\bpages?\b[^.]{0,80}operating system": "an operating system's",
    r"(?:\b(?:[Tt]his|web|whole|the next|man)|\b(?:on|of) the) page\b(?! table)": "where text is read",
    r"[Yy]our (?:own |first )?guess|\bguess (?:first|before|the)\b": "a learner's, not a token's",
    r"[Ii]teration-level|iteration batching": "Orca's own term, given as such",
    r"user messages?|user role|\bper user\b": "a message's role, and people",
}

FIGURE_KEYWORDS = frozenset(["label", "labels", "title", "xlabel", "ylabel"])
FIGURE_CALLS = frozenset(
    (
        "annotate", "legend", "set", "set_label", "set_title", "set_xlabel", "set_xticklabels", "set_ylabel",
        "set_yticklabels", "suptitle", "text", "title", "xlabel", "ylabel",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Something that a learner reads, and where it stands."""

    where: str
    text: str
    is_kernel: bool = False


def found_in(texts: Sequence[Text], may_stand: Mapping[str, str] = MappingProxyType(ALLOWED)) -> list[str]:
    """Words and phrases that the course does not use, each with its place and what to say instead."""
    told = []
    for one in texts:
        allowed = [match.span() for pattern in may_stand for match in re.finditer(pattern, one.text)]
        for pattern, instead in _PATTERNS:
            for match in pattern.finditer(one.text):
                if one.is_kernel and match[0].lower().startswith("page"):  # there BLOCK_M is a tile, PAGE the block
                    continue
                if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                    around = one.text[max(0, match.start() - 30) : match.end() + 30].replace("\n", " ")
                    told.append(f"{one.where}: {match[0]!r} ({instead}): ...{around}...")
    return told


_PATTERNS = tuple(
    [(re.compile(WORD.format(f"(?:{word})")), f"say {term.name}") for term in TERMS for word in term.not_words]
    + [
        (re.compile(WORD.format(f"(?:{phrase})"), re.IGNORECASE), "write it as an English book would")
        for phrase in PHRASES
    ]
)


def definitions(text: str) -> list[tuple[Term, str]]:
    """Terms in bold, each with its sentence: where a lab says what one means."""
    found = []
    by_name = {name: t for t in TERMS for part in t.name.split(", ") for name in (part, part + "s")}
    for match in re.finditer(r"\*\*([^*\n]+)\*\*", text):
        term = by_name.get(match[1])
        if term is not None:
            start = max(text.rfind(". ", 0, match.start()), text.rfind("\n\n", 0, match.start())) + 1
            end = re.search(r"\.(?:\s|$)", text[match.end() :])
            found.append((term, text[start : match.end() + (end.end() if end else len(text))].strip()))
    return found


def odd_definitions(texts: Sequence[Text]) -> list[str]:
    """Bold terms whose sentence shares no word with the glossary's meaning."""
    told = []
    for one in texts:
        for term, sentence in definitions(one.text):
            if not _content(term.meaning) & _content(sentence.replace(f"**{term.name}", "")):
                told.append(f"{one.where}: **{term.name}** is {term.meaning!r} in the glossary; here: {sentence!r}")
    return told


def _content(text: str) -> set[str]:
    words = {word.removesuffix("s") for word in re.findall(r"[a-z_]{4,}", text.lower())}
    return words - {"that", "which", "with", "from"}


def texts_of(lab: Lab) -> list[Text]:
    """All that a learner reads of a lab: its text, the comments and strings of its cells, its messages and figures."""
    texts = []
    for index, cell in enumerate(lab.notebook.cells):
        where = f"{lab.source.name}, cell {index}"
        if cell.cell_type == "markdown":
            texts.append(Text(where, prose_of(cell.source)))
        else:
            comments = re.findall(
                r"(?:^|\s)#\s*(?!BEGIN|END)(?:SOLUTION(?: `[^`]+`)?:?)?(.*)$", cell.source, re.MULTILINE
            )
            is_kernel = "triton.jit" in cell.source
            texts += [Text(where, text, is_kernel) for text in (*comments, *strings_of(ast.parse(cell.source)))]
    for module in _modules(lab):
        texts += [Text(module.name, text) for text in strings_of(ast.parse(module.read_text(encoding="utf-8")))]
    return [text for text in texts if text.text.strip()]


def _modules(lab: Lab) -> list[Path]:
    if not lab.has_exercises:
        return []
    own = ("sources.py", "wording.py", "claims.py")  # no learner reads these
    return sorted(
        path
        for folder in importlib.import_module(lab.package).__path__
        for path in Path(folder).rglob("*.py")
        if path.name not in own
    )


def prose_of(markdown: str) -> str:
    """Without fenced code, code spans, comments and the addresses of links."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]+`", "`code`", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def strings_of(tree: ast.AST) -> Iterator[str]:
    """Texts of a program: strings with a space in them and those that a figure shows, but for docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    shown = {id(part) for call in ast.walk(tree) if isinstance(call, ast.Call) for part in _shown_by(call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docs:
            continue
        if " " in node.value.strip() or id(node) in shown:
            yield re.sub(r"`[^`\n]+`", "`code`", node.value)


def _shown_by(call: ast.Call) -> Iterator[ast.AST]:
    """What of a call's arguments a figure shows."""
    is_figures = getattr(call.func, "attr", "") in FIGURE_CALLS
    arguments = [*call.args] if is_figures else []
    arguments += [keyword.value for keyword in call.keywords if is_figures or keyword.arg in FIGURE_KEYWORDS]
    for argument in arguments:
        yield from ast.walk(argument)


def problems(lab: Lab) -> list[str]:
    raw = [Text(f"cell {i}", cell.source) for i, cell in enumerate(lab.notebook.cells) if cell.cell_type == "markdown"]
    return found_in(texts_of(lab), _allowed_in(lab)) + odd_definitions(raw)


def _allowed_in(lab: Lab) -> Mapping[str, str]:
    name = f"{lab.package}.wording"
    if not lab.has_exercises or importlib.util.find_spec(name) is None:
        return ALLOWED
    return {**ALLOWED, **importlib.import_module(name).ALLOWED_WORDS}


def main(argv: list[str]) -> int:
    workbook = Workbook.find()
    told = [p for number in argv or list(workbook.labs) for p in problems(workbook.lab(number))]
    print("\n".join(told) or "one word for one thing")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
