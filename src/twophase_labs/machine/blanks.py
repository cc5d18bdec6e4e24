"""From a solved cell to a learner's cell. The answer is written in place and marked:

    scores = q @ k.T * scale           # SOLUTION: the scores of every key          the right-hand side becomes a blank
    y = weights @ v[:, head // group]  # SOLUTION `head // group`: the KV head      only the quoted part does
    # BEGIN SOLUTION: grow the cache by one position
    ...                                                                             these lines become one blank
    # END SOLUTION

A marked line may be an assignment, `return`, `if`, `for` or a bare expression. Of one that spans several lines
mark the last; a mark further up blanks only the last expression on its line (an argument, a dictionary's value).
Blanks are numbered from 1 in each exercise.
"""

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, replace

from twophase_labs.machine.lines import python_lines

LINE = re.compile(r"#\s*SOLUTION(?:\s*`(?P<part>[^`]+)`)?(?:\s*:\s*(?P<what>.*?))?\s*$")
BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)#\s*BEGIN SOLUTION(?:\s*:\s*(?P<what>[^\n]*?))?[ \t]*\n"
    r"(?P<body>.*?)^[ \t]*#\s*END SOLUTION[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^[ \t]*#\s*(BEGIN|END) SOLUTION\b", re.MULTILINE)


class SourceError(ValueError):
    """A lab's source that cannot be turned into a notebook; says which cell and what to change."""


@dataclass(frozen=True)
class Blank:
    """One blank: `answer` is the text it stands for, `is_block` whether that is whole lines."""

    number: int
    what: str
    answer: str
    is_block: bool

    def placeholder(self, exercise: str) -> str:
        what = f', "{self.what}"' if self.what else ""
        return f'____("{exercise}", {self.number}{what})'


@dataclass(frozen=True)
class Template:
    """A cell with its blanks: plain text and blanks in turn."""

    exercise: str
    parts: tuple[str | Blank, ...]

    @property
    def blanks(self) -> tuple[Blank, ...]:
        return tuple(part for part in self.parts if isinstance(part, Blank))

    def shipped(self) -> str:
        """The learner's cell."""
        return "".join(p if isinstance(p, str) else p.placeholder(self.exercise) for p in self.parts)

    def filled(self, answers: Mapping[int, str] | None = None) -> str:
        """The cell with these answers in its blanks, and the right ones in all others.

        A block's answer is dedented; it is indented here as its blank is.
        """
        answers = answers or {}
        unknown = set(answers) - {blank.number for blank in self.blanks}
        if unknown:
            raise ValueError(f"exercise {self.exercise} has {len(self.blanks)} blanks, and none numbered {unknown}")
        return self._fill(answers)[0]

    @property
    def is_open(self) -> bool:
        """Whether all of a function or class, but for its head and docstring, is the learner's to write."""
        return self._open_definition is not None

    @property
    def docstring(self) -> str:
        """Of the open function or class; '' if there is none."""
        found = self._open_definition
        return (ast.get_docstring(found) or "") if found is not None else ""

    @property
    def _open_definition(self) -> ast.FunctionDef | ast.ClassDef | None:
        """The function or class whose body, after its docstring, is the cell's only blank."""
        if len(self.blanks) != 1 or not self.blanks[0].is_block:
            return None
        source = self.filled()
        ((start, end),) = self.answer_spans()
        end = start + len(source[start:end].rstrip())
        first, last = (source.count("\n", 0, at) + 1 for at in (start, end))
        for node in ast.walk(ast.parse(source)):  # a class before its methods
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                body = node.body[ast.get_docstring(node) is not None :]
                if body and first <= body[0].lineno and body[-1].end_lineno == last:
                    return node
        return None

    def answer_spans(self) -> list[tuple[int, int]]:
        """[start, end) of every right answer in `filled()`."""
        return self._fill({})[1]

    def _fill(self, answers: Mapping[int, str]) -> tuple[str, list[tuple[int, int]]]:
        text = ""
        spans = []
        for part in self.parts:
            if isinstance(part, str):
                text += part
                continue
            start = len(text)
            indent = re.search(r"[ \t]*$", text)[0] if part.is_block else ""  # type: ignore[index]
            text += answers.get(part.number, part.answer).replace("\n", f"\n{indent}").replace(f"\n{indent}\n", "\n\n")
            spans.append((start, len(text)))
        return text, spans


def parse(source: str, exercise: str) -> Template:
    """Find the marked answers of one exercise cell.

    Raises:
        SourceError: a marker that belongs to nothing, an unfinished or unindented block, a cell that is not Python.
    """
    try:
        return Template(exercise, tuple(_split(source)))
    except SourceError as error:
        raise SourceError(f"exercise {exercise}: {error}") from None
    except (SyntaxError, tokenize.TokenError) as error:
        raise SourceError(f"exercise {exercise}: the cell is not valid Python ({error})") from None


def _split(source: str) -> list[str | Blank]:
    """Cut the source at every blank."""
    starts = [0]
    for line in python_lines(source):
        starts.append(starts[-1] + len(line))
    cuts = [*_block_cuts(source), *_line_cuts(source, starts)]
    parts: list[str | Blank] = []
    at = 0
    for start, end, blank in sorted(cuts, key=lambda cut: cut[0]):
        if start < at:
            raise SourceError(f"two markers claim the same text, {source[start:end].strip()!r}")
        parts.append(source[at:start])
        if blank is not None:
            number = 1 + sum(isinstance(part, Blank) for part in parts)
            parts.append(replace(blank, number=number))
        at = end
    return [*parts, source[at:]]


Cut = tuple[int, int, Blank | None]  # [start, end) of the source gives way to this blank, or to nothing


def _block_cuts(source: str) -> list[Cut]:
    cuts: list[Cut] = []
    for match in BLOCK.finditer(source):
        line = 1 + source.count("\n", 0, match.start())
        indent = match["indent"]
        if FENCE.search(match["body"]):
            raise SourceError(f"line {line}: BEGIN SOLUTION inside another one")
        if not indent:
            raise SourceError(f"line {line}: a block blank must stand inside a function, or the notebook won't run")
        body = [line.removeprefix(indent) for line in match["body"].removesuffix("\n").split("\n")]
        blank = Blank(0, match["what"] or "", "\n".join(body), is_block=True)
        cuts.append((match.start() + len(indent), match.end(), blank))
    if alone := FENCE.search(BLOCK.sub("", source)):
        raise SourceError("BEGIN SOLUTION without an END" if alone[1] == "BEGIN" else "END SOLUTION without a BEGIN")
    return cuts


def _line_cuts(source: str, starts: list[int]) -> list[Cut]:
    cuts: list[Cut] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = LINE.fullmatch(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        row, column = token.start
        comment = starts[row - 1] + column
        start, end = _answer_span(source, starts, row)
        if match["part"]:
            found = source[start:end].count(match["part"])
            if found != 1:
                raise SourceError(
                    f"line {row}: `{match['part']}` occurs {found} times in the marked statement, not once"
                )
            start += source[start:end].index(match["part"])
            end = start + len(match["part"])
        cuts.append((start, end, Blank(0, match["what"] or "", source[start:end], is_block=False)))
        code_end = len(source[:comment].rstrip())
        cuts.append((code_end, comment + len(token.string.rstrip()), None))
    return cuts


def _answer_span(source: str, starts: list[int], row: int) -> tuple[int, int]:
    """[start, end) of what the statement on this row computes."""
    lines = source.split("\n")

    def offset(line: int, column_bytes: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column_bytes].decode())

    def start_of(node: ast.AST) -> int:
        return offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end_of(node: ast.AST) -> int:
        return offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    statement = _statement_at(ast.parse(source), row)
    inside = _last_expression_on(statement, row) if statement is not None else None
    if inside is not None:
        return start_of(inside), end_of(inside)
    match statement:
        case ast.Assign() | ast.AugAssign():
            left = statement.targets[-1] if isinstance(statement, ast.Assign) else statement.target
            # The value's own position is inside any brackets around it; the sign before it is not.
            sign = re.compile(r"[\s)]*[-+*/@%&|^<>]*=\s*").match(source, end_of(left))
            assert sign is not None
            return sign.end(), end_of(statement)
        case ast.Return(value=ast.expr()):
            return start_of(statement) + len("return "), end_of(statement)
        case ast.Expr():
            return start_of(statement), end_of(statement)
        case ast.If():
            return start_of(statement.test), end_of(statement.test)
        case ast.For():
            return start_of(statement.iter), end_of(statement.iter)
    raise SourceError(f"line {row}: SOLUTION marks no assignment, return, if, for or expression")


def _statement_at(tree: ast.AST, row: int) -> ast.stmt | None:
    """The innermost statement whose own lines (a compound statement's header) include the row."""
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno or node.lineno
        if node.lineno <= row <= max(last, node.lineno) and (found is None or node.lineno >= found.lineno):
            found = node
    return found


def _last_expression_on(statement: ast.stmt, row: int) -> ast.expr | None:
    """For a row amid a longer statement (an argument, a dictionary's entry): the last, largest expression on it."""
    if statement.end_lineno == row or isinstance(statement, ast.If | ast.For):
        return None
    here = [n for n in ast.walk(statement) if isinstance(n, ast.expr) and n.lineno == n.end_lineno == row]
    return max(here, key=lambda node: (node.end_col_offset or 0, -node.col_offset), default=None)


def solution_lines(template: Template) -> set[str]:
    """The lines that must not be seen by a learner: those an answer stands on, stripped, the trivial ones left out."""
    lines: set[str] = set()
    before = ""
    for part in template.parts:
        if isinstance(part, str):
            before += part
            continue
        if part.is_block:
            lines.update(part.answer.split("\n"))
        else:
            line_start = before.rpartition("\n")[2]
            lines.add(line_start + part.answer.partition("\n")[0])
        before += part.answer
    bare = {re.sub(r"\s+#.*$", "", line).strip() for line in lines}
    # `return out` or `i += 1` may well stand elsewhere too, and gives nothing away.
    return {line for line in bare if len(line) >= 20 and not line.startswith("#")}
