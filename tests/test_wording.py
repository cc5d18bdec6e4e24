"""The engine's docstrings, comments and messages say what they mean: subject, verb, the field's term.

The rule: no pronoun whose noun is not in the sentence, and no phrase that reads as translated. PHRASES holds the usual
breaches, each with advice; the course's glossary adds its words. A breach that has to stand has its reason in ALLOWED.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.wording import WORD, Text, found_in

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "src/twophase",
    "src/twophase_features",
    "src/twophase_server",
    "kernels/twophase_kernels",
    "kernels/triton_on_cpu",
)

PHRASES = {
    r"what (?:it|is|was|are|were|has|had|they|stands)": "name the thing",
    r"(?:to|of|from|with|than|by) what": "name the thing",
    r"What": "begin with the noun",
    r"[Tt]hose (?:that|of|which|who|whose|with|without|in|for|it)": "repeat the noun",
    r"ones? (?:that|which|whose|who|with|without|more of)|the one of": "repeat the noun",
    r"Of": "begin with the subject",
    r"(?:is|are|was|were|be|has|have) none": "name the absent thing",
    r"(?<!there )(?<!There )(?:is|are|was|were) no(?! longer\b| more\b| less\b| way\b| larger\b| smaller\b| \w+er\b)":
        "say `is not`",
    r"so (?:many|much|few|long as it)": "give the number's name",
    r"lets? (?:\w+ )?in(?! place\b)|left any more": "say `admit`, or what is allowed",
    r"nobody|nobody's|whoever|whomever|somebody|anybody|whom": "name the process, the caller or the thread",
    r"as ever|by and by|for ever|for good|in vain|to no use|again and again|ever so": "say always, later, never, or how often",
    r"came of|comes of|come of|became of|becomes of": "say `result`",
    r"hangs? on|hung on": "say `depends on`",
    r"dearer|dearest|dear": "say slower, or more expensive",
    r"cures?": "say `fix`",
    r"tells? of|told of|tells? apart|told apart": "say report, or distinguish",
    r"in (?:\w+ )?company": "say batch",
    r"stands? still|stood still|by turns": "say stall, or round-robin",
    r"as it (?:is|was|were) (?:said|told)|all the same|the lot": "leave it out",
    r"goes with|go with|went with": "say requires, or belongs to",
    r"for people|think again|taken as read": "say who does what",
}  # fmt: skip

# The glossary's words that the engine uses in another sense.
ALLOWED = {
    r"[Pp]ages?": "the key of a paged cache, `k_pages`, and the K/V pages that a peer sends",
}

PATTERNS = {re.compile(WORD.format(f"(?:{phrase})")): advice for phrase, advice in PHRASES.items()}


def texts_of(source: str, where: str) -> Iterator[Text]:
    """Docstrings, comments and the strings with a space in them; comments on consecutive lines are one text."""
    lines: list[tuple[int, str]] = []
    goes_on = False  # behind code a comment is a text of its own
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_alone = token.line.strip()[0] == "#"
            if lines and not (goes_on and is_alone and lines[-1][0] == token.start[0] - 1):
                yield _text(where, lines[0][0], " ".join(line for _, line in lines))
                lines = []
            goes_on = is_alone
            lines.append((token.start[0], token.string.lstrip("#: ")))
    if lines:
        yield _text(where, lines[0][0], " ".join(line for _, line in lines))
    tree = ast.parse(source)
    in_f_strings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in in_f_strings:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield _text(where, node.lineno, text)


def _text(where: str, line: int, text: str) -> Text:
    return Text(f"{where}:{line}", re.sub(r"`[^`]+`", "`code`", re.sub(r"\s+", " ", text)))


def breaches(texts: list[Text]) -> list[str]:
    """Each use of a phrase, with its place and what to say instead."""
    return found_in(texts, (), PATTERNS) + found_in(texts, ALLOWED)


def package_of(path: Path) -> str:
    """The folder below one of FOLDERS; a file that lies directly in one counts for that one."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: min(3, len(parts) - 1)])


def found_by_package() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            texts = list(texts_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))))
            found.setdefault(package_of(path), []).extend(breaches(texts))
    return found


def test_no_package_has_a_breach():
    found = found_by_package()
    assert all(any(package.startswith(folder) for package in found) for folder in FOLDERS), "a folder has no file"
    assert not any(found.values()), "\n" + "\n".join(one for there in found.values() for one in there)


def test_docstrings_comments_and_messages_are_read():
    """A scanner that reads nothing would find nothing."""
    source = '''
def f(x):
    """Of a step: what it was."""
    # The one that
    # nobody reads is kept for ever.
    y = x  # in vain
    raise ValueError(f"{x} is no YAML, and its cure hangs on those of {y}")
'''
    found = breaches(list(texts_of(source, "planted.py")))
    assert {one.split("'")[1] for one in found} == {
        "Of", "what it", "one that", "nobody", "for ever", "in vain", "is no", "cure", "hangs on", "those of"
    }  # fmt: skip
    assert {one.split(":")[1] for one in found} == {"3", "4", "6", "7"}
