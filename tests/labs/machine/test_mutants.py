"""Small planted bugs in the machine that its tests must notice."""

import contextlib
import copy
import json
import shutil
import socket
import threading
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from nbformat import from_dict

from tests.labs.demo import DEMO, LAB
from tests.labs.machine.test_checks import ATTRIBUTE, LyingFloat, LyingInt, LyingTensor, LyingText, X
from tests.mutation import KillTable, Mutant
from twophase_labs.machine.build import solved_notebook
from twophase_labs.machine.checks import Rejected
from twophase_labs.machine.exercise import Property
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.progress import Progress

CHECKS, QUESTIONS, PROGRESS = (f"twophase_labs.machine.{name}" for name in ("checks", "questions", "progress"))
JUDGE, EXERCISE, SESSION = (f"twophase_labs.machine.{name}" for name in ("judge", "exercise", "session"))
MUTATE = "twophase_labs.machine.mutate"
GUARD, LOCATE, BLANKS = (
    "twophase_labs.machine.guard",
    "twophase_labs.machine.grading.locate",
    "twophase_labs.machine.blanks",
)
LINT, LABS, BANK = (f"twophase_labs.machine.{name}" for name in ("lint", "lab", "bank"))

MUTANTS = [
    Mutant("dtype ignored", CHECKS, "if got.dtype != expected.dtype and not is_finer and not any_dtype:", "if False:"),
    Mutant("NaN equals anything", CHECKS, "wrong = ~torch.isclose(", "wrong = ~torch.isnan(left) & ~torch.isclose("),
    Mutant("only some differ", CHECKS, "if not bool(wrong.any()):", "if not bool(wrong.all()):"),
    Mutant(
        "integers through float64",
        CHECKS,
        "wrong = got.cpu() != expected.cpu()",
        "wrong = left != right",
    ),
    Mutant("length ignored", CHECKS, "if len(got) != len(expected):", "if False:"),
    Mutant("changes not looked for", CHECKS, "        if not same:", "        if False:"),
    Mutant("views by shape", CHECKS, "got.untyped_storage().data_ptr() ==", "got.data_ptr() =="),
    Mutant("finer is another dtype", CHECKS, " and not is_finer and ", " and True and "),
    Mutant("NumPy has no numbers", CHECKS, "if issubclass(kind, np.generic):", "if False:"),
    Mutant("a 0-d tensor is no number", CHECKS, "tensor.item() if tensor.ndim == 0 and", "tensor.item() if False and"),
    Mutant("whole floats are no ints", CHECKS, "type(got) is float and got.is_integer()", "False"),
    Mutant("halves are whole", CHECKS, "return int(value) if value.is_integer() else None", "return int(value)"),
    Mutant("a subclass of int is believed", CHECKS, "    (int, int.__index__),\n", ""),
    Mutant("a subclass of float is believed", CHECKS, "    (float, float.__float__),\n", ""),
    Mutant(
        "a subclass of Tensor is believed",
        CHECKS,
        "made = torch.Tensor.as_subclass(value, torch.Tensor)",
        "made = value",
    ),
    Mutant(
        "attributes of a tensor are believed",
        CHECKS,
        "got, expected = plain_tensor(got), plain_tensor(expected)",
        "pass",
    ),
    Mutant("keys are believed", CHECKS, "{plain(key): value for key, value in got.items()}", "got"),
    Mutant(
        "a number may be a bool",
        CHECKS,
        "if type(value) in (int, float) else None",
        "if isinstance(value, int | float) else None",
    ),
    Mutant("an infinite number is finite", QUESTIONS, "<= sys.float_info.max", "<= float('inf')"),
    Mutant("a subclass of str is believed", QUESTIONS, "letter = plain(value).strip", "letter = value.strip"),
    Mutant("a prediction must be close", EXERCISE, 'if self.kind == "prediction" else steps', "if False else steps"),
    Mutant("any exception has the hint", JUDGE, 'is_finding = verdict == "failed" and', "is_finding ="),
    Mutant("any TypeError is a wrong call", JUDGE, "not learners_line(error)\n", "True\n"),
    Mutant(
        "a wrong call of anything",
        JUDGE,
        '{"<lambda>", *exercise.names}.isdisjoint(called["name"].split("."))',
        "False",
    ),
    Mutant("wrapped exceptions stay wrapped", JUDGE, "    while inner is not None and", "    while False and"),
    Mutant(
        "messages are believed",
        JUDGE,
        '    except Exception as fault:\n        return f"(its',
        '    except OSError as fault:\n        return f"(its',
    ),
    Mutant("no folder is made", PROGRESS, "self.path.parent.mkdir(parents=True, exist_ok=True)", "pass"),
    Mutant("too deep to read", PROGRESS, "OSError, RecursionError) as", "OSError) as"),
    Mutant("the last prediction counts", SESSION, ' and finite_number(entry.get("prediction")) is None:', ":"),
    Mutant("a late prediction counts", SESSION, 'if finite_number(entry.get("measured")) is None and', "if"),
    Mutant("what is given counts as answered", MUTATE, "return not any(a <= start", "return any(a <= start"),
    Mutant("edits of one line look alike", MUTATE, "if seen[edit.diff] > 1", "if False"),
    Mutant(
        "the tree stays edited",
        MUTATE,
        "        finally:\n            place.put(node)",
        "        finally:\n            pass",
    ),
    Mutant("memory that sees values", MUTATE, "    return type(x)\n\ndef", "    return x\n\ndef"),
    Mutant("seal without its salt", QUESTIONS, "json.dumps([exercise, answer]", "json.dumps([answer]"),
    Mutant("one side of the tolerance", QUESTIONS, "abs(value - expected) <= max", "value - expected <= max"),
    Mutant(
        "one pair is enough", QUESTIONS, "            if wrong:\n", "            if len(wrong) == len(self.sealed):\n"
    ),
    Mutant("broken file overwritten", PROGRESS, "self._move_aside(error)", "pass"),
    Mutant("written in place", PROGRESS, "os.replace(temporary, self.path)", "self.path.write_text(text)"),
    Mutant("added methods unseen", GUARD, "names = (now.keys() | was.keys())", "names = set(was)"),
    Mutant("not restored", GUARD, "vars(module).update(before)", "pass"),
    Mutant("private names unwatched", GUARD, "(is_own or not name.startswith", "(not name.startswith"),
    Mutant("any definition will do", LOCATE, "if len(different) > 1:", "if False:"),
    Mutant("untouched is an attempt", LOCATE, "if cell.source.strip() == template.shipped().strip():", "if False:"),
    Mutant("blanks all number one", BLANKS, "number = 1 + sum(", "number = 1 + 0 * sum("),
    Mutant("one bank hides another", LABS, "if len(banks) < len(found):", "if False:"),
    Mutant("text that occurs twice", BANK, "if cell.count(old) != 1:", "if old not in cell:"),
    Mutant("one change of several", BANK, "cell = cell.replace(old, new)", "return cell.replace(old, new)"),
    Mutant("oracles within reach", LINT, "if CHECKS.search(name)", "if False"),
    Mutant("block lines leak", LINT, "if line in cell.source", "if line == cell.source"),
]


LIES = [
    (LyingInt(4), 3),
    (LyingFloat(4), 3.0),
    ({LyingText("b"): 1}, {"a": 1}),
    ((X + 1).as_subclass(LyingTensor), X),
    (ATTRIBUTE, X),
]


def rejects(module: ModuleType, *args, **kwargs) -> str:
    """The message with which compare rejects; fails if it does not."""
    try:
        module.compare(*args, **kwargs)
    except module.Rejected as error:
        return str(error)
    raise AssertionError(f"accepted {args}")


def check_checks(module: ModuleType) -> None:
    x = torch.arange(4.0)
    rejects(module, x.half(), x)
    rejects(module, x, x.double())
    rejects(module, [2.5], [2])
    nan = x.clone()
    nan[1] = torch.nan
    assert "NaN" in rejects(module, nan, x)
    rejects(module, torch.tensor([2**62 + 1]), torch.tensor([2**62]))
    rejects(module, [1], [1, 2])
    y = x.clone()
    with contextlib.suppress(module.Rejected):
        with module.unchanged(y=y):
            y[0] = 9
        raise AssertionError("a change went unnoticed")
    with contextlib.suppress(module.Rejected):
        module.fresh(x[1:], x=x)
        raise AssertionError("a view went unnoticed")

    module.compare(x.double(), x)
    for value in (np.int64(3), torch.tensor(3), 3.0):
        module.compare(value, 3)
    assert [module.number(True), module.integer(2.5), module.integer(np.int64(3))] == [None, None, 3]
    module.compare([LyingInt(3), LyingFloat(3.5)], [3, 3.5])
    for lie, expected in LIES:
        rejects(module, lie, expected)


def check_questions(module: ModuleType) -> None:
    assert module.seal("1.1", "a") != module.seal("1.2", "a")
    assert not module.Number(lambda: 10, rel=0.1).accepts(5, 10)
    assert module.finite_number(float("inf")) is None
    matching = module.Matching("ab", {"x": module.seal("9.9", ["x", "a"]), "y": module.seal("9.9", ["y", "b"])})
    choice = module.Choice("ab", module.seal("9.9", "b"))
    from twophase_labs.machine.checks import Rejected

    with contextlib.suppress(Rejected):
        matching.properties("9.9")[1][1]({"x": "a", "y": "a"})
        raise AssertionError("a half-right matching was accepted")
    with contextlib.suppress(Rejected):
        choice.properties("9.9")[1][1](Stripped("a"))
        raise AssertionError("a string that lies was accepted")


class Stripped(str):
    def strip(self, *_):
        return "b"


def check_exercise(module: ModuleType) -> None:
    (_, value), question = ("guess", 200), LAB.exercises["1.4"].question
    exercise = module.Exercise("1.4", "", "prediction", ("guess",), 1, 1, "", question=question)
    for prop in exercise.properties:
        prop.test(SimpleNamespace(guess=value), None)


def check_judge(module: ModuleType) -> None:
    exercise = LAB.exercises["1.1"]

    def judged(answer, test):
        changed = copy.copy(exercise)
        object.__setattr__(changed, "checks", (Property("holds", test, "The hint."),))
        namespace = {}
        module.run_cell(answer, namespace, "<exercise 1.1>")
        got = module.Judge({"1.1": changed}, {}, {}).judge(changed, namespace)
        return got.verdict, got.hint, got.reason

    def calls(answer, draw):
        answer.running_mean(1)

    def wraps(answer, draw):
        try:
            answer.running_mean(1)
        except Exception as error:
            raise RuntimeError("wrapped") from error

    def stumbles(answer, draw):
        wraps(answer)

    body = "def running_mean(x):\n    "
    assert judged(f"{body}return x / 0\n", calls)[:2] == ("error", "")
    assert judged(f"{body}return running_mean(x, 1)\n", calls)[0] == "error"
    assert judged(f"{body}return x / 0\n", wraps)[2] == "your code raised ZeroDivisionError: division by zero"
    assert judged(f"{body}return x\n", stumbles)[1] == "The hint."
    odd = "class Odd(ValueError):\n    def __str__(self):\n        return 1 / 0\n"
    try:
        assert "cannot be shown" in judged(f"{odd}{body}raise Odd\n", calls)[2]
    except ZeroDivisionError as error:
        raise AssertionError("a message that raises got out") from error


def check_session(module: ModuleType, folder) -> None:
    session = object.__new__(module.Session)
    session.progress = Progress(folder / "b.progress.json")
    exercise = LAB.exercises["1.4"]
    module._committed(session, exercise, 200)
    module._committed(session, exercise, 5000)
    assert session.progress.of("1.4") == {"prediction": 200.0}
    session.progress.record("1.4", lambda entry: (entry.clear(), entry.update(measured=3.0)))
    module._committed(session, exercise, 3)
    assert session.progress.of("1.4") == {"measured": 3.0, "late_prediction": 3.0}


def check_mutate(module: ModuleType) -> None:
    source = "def f(a):\n    b = a + 2\n    b = a + 2\n    return b\n"
    found = module.edits(source, [(14, 23)], ("f",))
    assert source[14:23] == "b = a + 2"
    sums = [edit for edit in found if edit.kind == "operators"]
    assert [(edit.diff, edit.is_given) for edit in sums] == [
        ("b = a + 2 -> b = a - 2", False),
        ("b = a + 2 -> b = a - 2 (2)", True),
    ]
    assert all(edit.source.count("-") == 1 for edit in sums)
    others = module.edits("def f(a):\n    b = a + 2\n    return b + 3\n", [(14, 23)], ("f",))
    assert [edit.diff[0] for edit in others if edit.kind == "operators" and not edit.is_given] == ["b"]
    namespace = {}
    exec(next(edit.source for edit in found if edit.kind == "memo"), namespace)
    assert [namespace["f"](1), namespace["f"](2)] == [3, 3]


def check_progress(module: ModuleType, folder) -> None:
    path = folder / "a.progress.json"
    for old in folder.iterdir():
        old.unlink()
    path.write_text("{")
    module.Progress(path).record("1.1", lambda entry: entry.update(attempts=1))
    assert (folder / "a.progress.broken.json").exists()
    before = path.stat().st_ino
    module.Progress(path).record("1.1", lambda entry: entry.update(attempts=2))
    assert path.stat().st_ino != before, "the file was changed in place"
    assert len(list(folder.iterdir())) == 2
    path.write_text("[" * 10**5)
    try:
        module.Progress(path).record("1.1", lambda entry: None)
    except RecursionError as error:
        raise AssertionError("a deep file got out") from error
    shutil.rmtree(folder)
    module.Progress(path).record("1.1", lambda entry: None)
    assert path.exists()


def check_guard(module: ModuleType) -> None:
    from twophase_labs.machine import judge

    guard, isclose, tried = module.Guard(), torch.isclose, judge._try
    try:
        torch.Tensor.sneaky = 1
        torch.isclose = judge._try = len
        replaced = ["torch.isclose", "twophase_labs.machine.judge._try", "torch.Tensor.sneaky"]
        assert guard.replaced() == replaced
        guard.restore()
        assert (torch.isclose, judge._try) == (isclose, tried)
        assert guard.replaced() == []
    finally:
        torch.isclose, judge._try = isclose, tried
        with contextlib.suppress(AttributeError):
            del torch.Tensor.sneaky


def check_locate(module: ModuleType) -> None:
    exercise, template = LAB.exercises["1.1"], LAB.templates["1.1"]
    cells = module.code_cells(solved_notebook(LAB))
    twice = module.locate(exercise, template, [*cells, module.Cell(9, "running_mean = len", None)])
    assert twice.verdict == "error"
    untouched = module.locate(exercise, template, [module.Cell(1, template.shipped(), "1.1")])
    assert untouched.verdict == "not_attempted"


def check_blanks(module: ModuleType) -> None:
    template = module.parse("x = a  # SOLUTION\ny = b  # SOLUTION\n", "1.1")
    assert [blank.number for blank in template.blanks] == [1, 2]


def check_lint(module: ModuleType) -> None:
    leaky = from_dict({"cells": [{"cell_type": "code", "source": "# so:\nmean = running_mean(x)"}]})
    assert len(module.leaks(LAB, leaky)) == 1
    lab = Workbook(DEMO.root, DEMO.package).lab("1")
    lab.notebook.cells[1].source += "\nfrom tests.labs.demo.demo.exercises.basics import counts"
    assert len(module._cells(lab)) == 1


def check_labs(module: ModuleType) -> None:
    lab = module.Workbook(DEMO.root, DEMO.package).lab("01")
    lab._modules = lambda package, prefix: [f"{package}.answers_basics"] * 2
    with contextlib.suppress(module.WorkbookError):
        raise AssertionError(f"two banks of one exercise: {lab.banks.keys()}")


def check_bank(module: ModuleType) -> None:
    template = LAB.templates["1.1"]
    got = module.right("", "cumsum", "cumprod", "1, x", "2, x").source(template)
    assert got == template.filled().replace("cumsum", "cumprod").replace("1, x", "2, x")
    with contextlib.suppress(ValueError):
        raise AssertionError(module.right("", "totals", "sums").source(template))


CHECK_OF = {
    CHECKS: check_checks,
    QUESTIONS: check_questions,
    EXERCISE: check_exercise,
    JUDGE: check_judge,
    MUTATE: check_mutate,
    GUARD: check_guard,
    LOCATE: check_locate,
    BLANKS: check_blanks,
    LINT: check_lint,
    LABS: check_labs,
    BANK: check_bank,
}


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant(mutant, tmp_path):
    with_folder = check_session if mutant.module == SESSION else check_progress
    KillTable.record(mutant, CHECK_OF.get(mutant.module, lambda module: with_folder(module, tmp_path)))
