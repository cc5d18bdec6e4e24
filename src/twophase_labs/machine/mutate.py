"""A mutation search for checks: small edits of what a solved answer says, each run against the exercise's check.

    python -m twophase_labs.machine.prove 01 --mutate [--exercise 1.3] [--edits 40]

An edit that passes changed nothing that the check looks at. Either the check is too weak, or the edit is equivalent:
then `tests/labs/<chapter>/equivalent.py` names it with the reason, by a part of the changed line:

    EQUIVALENT = {"1.3": {"the loop has ended before": ("i <= n",)}}

Edits are made by `ast`, in the answers of the blanks, each resulting source once.
"""

import ast
import copy
import hashlib
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.grading.lane import Job
from twophase_labs.machine.lab import Lab
from twophase_labs.machine.lines import python_lines

NUM_EDITS = 40
BUDGET_S = 180  # of one exercise; the edits beyond it are counted as untried
CAPS = (64, 256)

MEMO = """
def _size(x):
    if hasattr(x, 'shape'):
        return tuple(x.shape)
    if isinstance(x, (list, tuple)):
        return tuple(map(_size, x)) if len(x) < 9 else len(x)
    return type(x)

def _remembered(function):
    kept = {{}}

    def call(*args, **kwargs):
        key = (*map(_size, args), *sorted((name, _size(value)) for name, value in kwargs.items()))
        if key not in kept:
            kept[key] = function(*args, **kwargs)
        return kept[key]

    return call

{name} = _remembered({name})
"""


@dataclass(frozen=True)
class Edit:
    """One changed cell, with the line that differs as 'before -> after'."""

    kind: str
    diff: str
    source: str


@dataclass(frozen=True)
class Searched:
    """What became of one exercise's edits; `survivors` and `equivalent` are diffs."""

    exercise: str
    num_tried: int
    num_rejected: int
    num_untried: int
    survivors: tuple[str, ...]
    equivalent: tuple[str, ...]
    errors: tuple[str, ...]  # entries of EQUIVALENT that name no edit, or one that is rejected

    def __str__(self) -> str:
        told = [*self.survivors, *(f"equivalent.py: {error}" for error in self.errors)]
        if self.survivors:
            entry = f'{{"{self.exercise}": {{"the reason": ("part of the text after ->",)}}}}'
            told.append(
                f"Each needs a case or a tighter tolerance; one that changes nothing, in equivalent.py: {entry}"
            )
        return "\n    ".join([f"{self.exercise}: {summary([self])}", *told])


# -- the edits ------------------------------------------------------------------------------------------------------

# Each takes a node that stands in an answer and yields what may stand in its place.
Change = Callable[[ast.AST], Iterator[ast.AST]]


def _plus(node: ast.expr, by: int) -> ast.expr:
    operator = ast.Add() if by > 0 else ast.Sub()
    return ast.BinOp(copy.deepcopy(node), operator, ast.Constant(abs(by)))


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [copy.deepcopy(a) for a in arguments], [])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def constants(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        for value in (node.value + 1, node.value - 1, type(node.value)(0)):
            yield ast.Constant(value)


COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.Is), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip


def comparisons(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Compare):
        return
    for at, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            if other is ast.Is and isinstance(node.comparators[at], ast.Constant):
                continue  # Python warns of it
            yield _with(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])


def falsy_for_none(node: ast.AST) -> Iterator[ast.AST]:
    """`x is None` taken for `not x`: zero and empty count as absent."""
    match node:
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            yield ast.UnaryOp(ast.Not(), copy.deepcopy(left))
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            yield copy.deepcopy(left)


def ends(node: ast.AST) -> Iterator[ast.AST]:
    """One more or one less in a range or slice; constants are the business of `constants`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for at, argument in enumerate(node.args[:2]):
            for by in (1, -1):
                yield _with(node, args=[*node.args[:at], _plus(argument, by), *node.args[at + 1 :]])
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            end = getattr(node, name)
            if end is not None and not isinstance(end, ast.Constant):
                yield from (_with(node, **{name: _plus(end, by)}) for by in (1, -1))


def caps(node: ast.AST) -> Iterator[ast.AST]:
    """Sizes and ranges end at a power of two, as a block or a buffer of a kernel would."""
    for cap in map(ast.Constant, CAPS):
        match node:
            case ast.Call(func=ast.Name(id="len")) | ast.Subscript(value=ast.Attribute(attr="shape"), ctx=ast.Load()):
                yield _call("min", node, cap)
            case ast.Call(func=ast.Name(id="range"), args=[*rest, stop]) if len(rest) < 2:
                yield _with(node, args=[*rest, _call("min", stop, cap)])
            case ast.Slice(upper=ast.expr() as upper) if not isinstance(upper, ast.Constant | ast.UnaryOp):
                yield _with(node, upper=_call("min", upper, cap))


def quotients(node: ast.AST) -> Iterator[ast.AST]:
    """Cut to whole numbers, rounded to thousandths, with a little added to what divides."""
    match node:
        case ast.BinOp(op=ast.Div(), right=right):
            yield _with(node, op=ast.FloorDiv())
            yield _call("round", node, ast.Constant(3))
            if not isinstance(right, ast.Constant):
                yield _with(node, right=ast.BinOp(copy.deepcopy(right), ast.Add(), ast.Constant(1e-5)))


OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


def operators(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield copy.deepcopy(node.operand)  # of -1 `constants` makes 0 and -2; as an axis it is often the same as 1


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """A condition or call loses a part: `a and b` is `a`, `max(a, b)` is `a`, `x.clone()` is `x`."""
    match node:
        case ast.BoolOp(values=values):
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield copy.deepcopy(rest[0]) if len(rest) == 1 else _with(node, values=rest)
        case ast.Call(func=ast.Name(id="min" | "max"), args=[one, other], keywords=[]):
            yield copy.deepcopy(one)
            yield copy.deepcopy(other)
        case ast.Call(func=ast.Name(id="list" | "sorted" | "abs" | "int" | "set" | "tuple" | "dict"), args=[one]):
            yield copy.deepcopy(one)
        case ast.Call(func=ast.Attribute(value=one, attr="clone" | "copy" | "contiguous" | "float" | "double")):
            yield copy.deepcopy(one)
        case ast.Call(func=ast.Attribute(attr="reshape")):  # of what may be no view
            yield _with(node, func=_with(node.func, attr="view"))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="ceil" | "floor" as which), args=[one]):
            yield _call("int", one)
            yield ast.BinOp(_call("int", one), ast.Add(), ast.Constant(1 if which == "ceil" else -1))


PRECISION = {"float64": "float32", "double": "float", "float32": "bfloat16", "int64": "int32"}


def precision(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Attribute) and node.attr in PRECISION:
        yield _with(node, attr=PRECISION[node.attr])


KEPT = ast.FunctionDef | ast.ClassDef | ast.Pass | ast.Import | ast.ImportFrom


def dropped(node: ast.AST) -> Iterator[ast.AST]:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.stmt) and not isinstance(node, KEPT) and not is_text:
        yield ast.Pass()


def swapped(scope: Sequence[str]) -> Change:
    """A name for its neighbours among those of the function, which are the likeliest of its kind."""

    def names(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in scope:
            at = scope.index(node.id)
            near = [*scope[max(0, at - 2) : at], *scope[at + 1 : at + 3]]
            yield from (ast.Name(other, ast.Load()) for other in near)

    return names


CHANGES: tuple[Change, ...] = (
    constants, comparisons, falsy_for_none, ends, caps, operators, quotients, parts, precision, dropped,
)  # fmt: skip


def edits(source: str, answers: Sequence[tuple[int, int]], names: Sequence[str]) -> list[Edit]:
    """All edits of a cell, each resulting source once.

    Args:
        answers: Spans [start, end) of what the learner writes.
        names: What the exercise asks for; each function among them also as one that remembers results by their size.
    """
    tree = ast.parse(source)
    before = ast.unparse(tree)
    found: dict[str, Edit] = {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in names and not function.decorator_list:
            text = f"{before}\n{MEMO.format(name=function.name)}"
            found[text] = Edit("memo", f"{function.name} remembers its results by the size of its inputs", text)
    for node, scope in _answered(source, tree, answers):
        for change in (*CHANGES, swapped(_scope(scope))):
            for text in _changed(tree, node, change):
                if text != before and text not in found and _compiles(text):
                    found[text] = Edit(change.__name__, _diff(before, text), text)
    return _told_apart(list(found.values()))


def _answered(source: str, tree: ast.Module, answers: Sequence[tuple[int, int]]) -> list[tuple[ast.AST, ast.AST]]:
    """Every expression, slice and statement of the answers, each with the function that it stands in."""
    starts = [0]  # in bytes, as ast counts columns
    for line in python_lines(source):
        starts.append(starts[-1] + len(line.encode()))
    spans = [(len(source[:a].encode()), len(source[:b].encode())) for a, b in answers]
    found: list[tuple[ast.AST, ast.AST]] = []

    def is_answer(node: ast.expr | ast.stmt) -> bool:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return any(a <= start and end <= b for a, b in spans)

    def visit(parent: ast.AST, function: ast.AST) -> None:
        for node in ast.iter_child_nodes(parent):
            if not _is_aside(node):
                if isinstance(node, ast.expr | ast.stmt) and is_answer(node):
                    found.append((node, function))
                visit(node, node if isinstance(node, ast.FunctionDef) else function)

    visit(tree, tree)
    return found


def _is_aside(node: ast.AST) -> bool:
    """What decides nothing in a right answer: the words of an error, and `strict=` of a zip."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict")


@dataclass
class _Swap(ast.NodeTransformer):
    """Puts one node in the place of another."""

    old: ast.AST
    new: ast.AST

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _changed(tree: ast.Module, node: ast.AST, change: Change) -> Iterator[str]:
    """The source with each of the changes of this node."""
    for new in change(node):
        _Swap(node, new).visit(tree)
        try:
            yield ast.unparse(ast.fix_missing_locations(tree))
        finally:
            _Swap(new, node).visit(tree)


def _scope(function: ast.AST) -> list[str]:
    """Names of a function's arguments and of what it assigns."""
    if not isinstance(function, ast.FunctionDef):
        return []
    arguments = [a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)]
    stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [name for name in dict.fromkeys(arguments + stored) if name not in ("self", "_")]


def _compiles(text: str) -> bool:
    try:
        compile(text, "<edit>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _diff(before: str, after: str) -> str:
    """'before -> after' of the first line that differs, without its indent."""
    one, other = before.split("\n"), after.split("\n")
    at = next(i for i, (a, b) in enumerate(zip_longest(one, other)) if a != b)
    shorter = len(other) < len(one)
    return f"{one[at].strip()} -> {'pass' if shorter and other[at].strip() == 'pass' else other[at].strip()}"


def _told_apart(found: list[Edit]) -> list[Edit]:
    """Edits of two equal lines have distinct diffs."""
    seen: dict[str, int] = {}
    made = []
    for edit in found:
        seen[edit.diff] = seen.get(edit.diff, 0) + 1
        again = f" ({seen[edit.diff]})" if seen[edit.diff] > 1 else ""
        made.append(replace(edit, diff=edit.diff + again))
    return made


def chosen(found: Sequence[Edit], num: int) -> list[Edit]:
    """At most `num`, of each kind in turn, within a kind in an order that the rest of the source does not sway."""
    kinds: dict[str, list[Edit]] = {}
    for edit in sorted(found, key=lambda e: hashlib.sha256(e.diff.encode()).digest()):
        kinds.setdefault(edit.kind, []).append(edit)
    rounds = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return [edit for together in rounds for edit in together if edit is not None][:num]


# -- the search -----------------------------------------------------------------------------------------------------


def edits_of(lab: Lab, exercise: str) -> list[Edit]:
    template = lab.templates[exercise]
    return edits(template.filled(), template.answer_spans(), lab.exercises[exercise].names)


def equivalents(lab: Lab) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Parts of changed lines by exercise and reason, from `tests/labs/<chapter>/equivalent.py` if there is one."""
    module = f"{lab.answers}.equivalent"
    return importlib.import_module(module).EQUIVALENT if importlib.util.find_spec(module) else {}


def search(
    grader: Grader, lab: Lab, exercise: str, num_edits: int = NUM_EDITS, budget_s: int | float = BUDGET_S
) -> Searched:
    """Run the edits of one exercise, as many as fit into the budget."""
    found = edits_of(lab, exercise)
    known, errors = _named(found, equivalents(lab).get(exercise, {}))
    waiting = chosen(found, num_edits)
    passed: list[str] = []
    rejected: list[str] = []
    deadline = time.monotonic() + budget_s
    while waiting and time.monotonic() < deadline:
        batch, waiting = waiting[: grader.num_workers], waiting[grader.num_workers :]
        jobs = [Job(exercise, edit.source, fall_back=lab.all_uses(exercise), seed=0) for edit in batch]
        for edit, verdict in zip(batch, grader.run_all(lab, jobs), strict=True):
            if verdict.verdict != "not_run_here":
                (passed if verdict.passed else rejected).append(edit.diff)
    errors += [f"is not equivalent, for the check rejects it: {diff}" for diff in rejected if diff in known]
    return Searched(
        exercise,
        len(passed) + len(rejected),
        len(rejected),
        len(waiting),
        tuple(diff for diff in passed if diff not in known),
        tuple(f"{diff}: {known[diff]}" for diff in passed if diff in known),
        tuple(errors),
    )


def _named(found: Sequence[Edit], reasons: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str], list[str]]:
    """Reasons by diff, and what is wrong with those that name none."""
    known, errors = {}, []
    for reason, parts in reasons.items():
        for part in parts:
            diffs = [edit.diff for edit in found if part in edit.diff.partition(" -> ")[2]]
            known.update(dict.fromkeys(diffs, reason))
            errors += [f"names no edit: {part}"] * (not diffs)
    return known, errors


def summary(found: Sequence[Searched]) -> str:
    tried, rejected = sum(f.num_tried for f in found), sum(f.num_rejected for f in found)
    survivors, equivalent = sum(len(f.survivors) for f in found), sum(len(f.equivalent) for f in found)
    untried = sum(f.num_untried for f in found)
    return (
        f"{tried} edits: {rejected} rejected, {equivalent} equivalent, {survivors} survive; "
        f"{untried} not tried for want of time"
    )
