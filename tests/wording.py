"""The words of a lab's texts: those of the glossary, and English ones.

`problems` finds where a lab's prose, the comments and strings of its cells and its messages use a word that the
glossary has another one for, or a phrase that reads as translated. Names in code
(`page_ids`) and docstrings are not looked at. Of a word with ordinary meanings as well (number, pass, found, slot) only
uses that are certainly the term's are found: this does not spare anybody a reading.
"""

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twophase_labs.machine.lab import Lab

WORD = r"(?<![\w`-]){}(?![\w`])"

# Terms of the glossary, and what the course does not call them.
OTHER_WORDS = {
    "request": ("readers?", "writers?", "users? (?:waits?|arrives?|finish(?:es)?|decodes?|runs?)"),
    "step": ("iterations?", "(?:engine|decode|scheduler) (?:pass(?:es)?|turns?)", "(?:each|every|per|one) turn"),
    "block": ("[Pp]ages?",),
    "slot": ("seats?",),
    "tile": ("query blocks?", "blocks? of queries"),
    "element": ("numbers per (?:token|head|row)", "numbers in (?:a|the|each) (?:tensor|matrix|row|cache)"),
    "hit": ("(?:known|found) tokens?",),
    "draft": ("guess(?:es|ed|ing)?",),
    "LSE": ("log-sums?(?!-exp)", "units of log2"),
    "SLO": ("(?:a|the|its|each|every|latency) promises?",),
}

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


@dataclass(frozen=True)
class Text:
    """Something that a learner reads, and where it stands."""

    where: str
    text: str
    is_kernel: bool = False


PATTERNS = {
    **{re.compile(WORD.format(f"(?:{word})")): f"say {term}" for term, words in OTHER_WORDS.items() for word in words},
    **{
        re.compile(WORD.format(f"(?:{phrase})"), re.IGNORECASE): "write it as an English book would"
        for phrase in PHRASES
    },
}


def found_in(
    texts: Sequence[Text], may_stand: Iterable[str] = tuple(ALLOWED), patterns: Mapping[re.Pattern[str], str] = PATTERNS
) -> list[str]:
    """Each use of a pattern, with its place and what to say instead."""
    told = []
    for one in texts:
        allowed = [match.span() for pattern in may_stand for match in re.finditer(pattern, one.text)]
        for pattern, instead in patterns.items():
            for match in pattern.finditer(one.text):
                if one.is_kernel and match[0].lower().startswith("page"):  # there BLOCK_M is a tile, PAGE the block
                    continue
                if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                    around = one.text[max(0, match.start() - 30) : match.end() + 30].replace("\n", " ")
                    told.append(f"{one.where}: {match[0]!r} ({instead}): ...{around}...")
    return told


def texts_of(lab: Lab) -> list[Text]:
    """All that a learner reads of a lab: its text, the comments and strings of its cells, its messages."""
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
    folders = importlib.import_module(lab.package).__path__
    found = {path for folder in folders for path in Path(folder).rglob("*.py")}
    return sorted(path for path in found if path.name != "sources.py")  # which no learner reads


def prose_of(markdown: str) -> str:
    """Without fenced code, code spans, comments and the addresses of links."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]+`", "`code`", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def strings_of(tree: ast.AST) -> Iterator[str]:
    """Texts of a program: strings with a space in them, but for docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    for node in constants:
        if isinstance(node.value, str) and " " in node.value.strip():
            yield re.sub(r"`[^`\n]+`", "`code`", node.value)


def problems(lab: Lab) -> list[str]:
    return found_in(texts_of(lab))
