"""Small planted bugs in the machine that its tests must notice."""

import contextlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from nbformat import from_dict

from tests.mutation import KillTable, Mutant
from tests.workbook.demo import LAB
from twophase.workbook.build import solved_notebook

CHECKS, QUESTIONS, PROGRESS = (f"twophase.workbook.{name}" for name in ("checks", "questions", "progress"))
GUARD, LOCATE, BLANKS = "twophase.workbook.guard", "twophase.workbook.grading.locate", "twophase.workbook.blanks"
LINT, LABS = "twophase.workbook.lint", "twophase.workbook.lab"

MUTANTS = [
    Mutant("dtype ignored", CHECKS, "if got.dtype != expected.dtype and not any_dtype:", "if False:"),
    Mutant("NaN equals anything", CHECKS, "wrong = ~torch.isclose(", "wrong = ~torch.isnan(left) & ~torch.isclose("),
    Mutant("only some differ", CHECKS, "if not bool(wrong.any()):", "if not bool(wrong.all()):"),
    Mutant(
        "integers through float64",
        CHECKS,
        "wrong = got.detach().cpu() != expected.detach().cpu()",
        "wrong = left != right",
    ),
    Mutant("length ignored", CHECKS, "if len(got) != len(expected):", "if False:"),
    Mutant("changes not looked for", CHECKS, "        if not same:", "        if False:"),
    Mutant("views by shape", CHECKS, "got.untyped_storage().data_ptr() ==", "got.data_ptr() =="),
    Mutant("seal without its salt", QUESTIONS, "json.dumps([exercise, answer]", "json.dumps([answer]"),
    Mutant("one side of the tolerance", QUESTIONS, "abs(value - expected) <= max", "value - expected <= max"),
    Mutant(
        "one pair is enough", QUESTIONS, "            if wrong:\n", "            if len(wrong) == len(self.sealed):\n"
    ),
    Mutant("broken file overwritten", PROGRESS, "self._move_aside(error)", "pass"),
    Mutant("written in place", PROGRESS, "os.replace(temporary, self.path)", "self.path.write_text(text)"),
    Mutant("added methods unseen", GUARD, "names = (now.keys() | before.keys())", "names = set(before)"),
    Mutant("not restored", GUARD, "vars(module).update(before)", "pass"),
    Mutant("any definition will do", LOCATE, "if len(different) > 1:", "if False:"),
    Mutant("untouched is an attempt", LOCATE, "if cell.source.strip() == template.shipped().strip():", "if False:"),
    Mutant("experiments run too", LOCATE, "if _is_definition(node) and not", "if not"),
    Mutant("blanks all number one", BLANKS, "number = 1 + sum(", "number = 1 + 0 * sum("),
    Mutant("the last bank hides the others", LABS, "before = found.get(i, Bank())", "before = Bank()"),
    Mutant("right answers of one bank only", LABS, "(*before.right, *bank.right)", "before.right or bank.right"),
    Mutant("block lines leak", LINT, "if line in cell.source", "if line == cell.source"),
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
    rejects(module, x.double(), x)
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


def check_questions(module: ModuleType) -> None:
    assert module.seal("1.1", "a") != module.seal("1.2", "a")
    assert not module.Number(lambda: 10, rel=0.1).accepts(5, 10)
    question = module.Matching("ab", {"x": module.seal("9.9", ["x", "a"]), "y": module.seal("9.9", ["y", "b"])})
    from twophase.workbook.checks import Rejected

    with contextlib.suppress(Rejected):
        question.properties("9.9")[1][1]({"x": "a", "y": "a"})
        raise AssertionError("a half-right matching was accepted")


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


def check_guard(module: ModuleType) -> None:
    guard, isclose = module.Guard(), torch.isclose
    try:
        torch.Tensor.sneaky = 1
        torch.isclose = len
        assert guard.replaced() == ["torch.isclose", "torch.Tensor.sneaky"]
        guard.restore()
        assert torch.isclose is isclose
        assert guard.replaced() == []
    finally:
        torch.isclose = isclose
        with contextlib.suppress(AttributeError):
            del torch.Tensor.sneaky


def check_locate(module: ModuleType) -> None:
    exercise, template = LAB.exercises["1.1"], LAB.templates["1.1"]
    cells = module.code_cells(solved_notebook(LAB))
    twice = module.locate(exercise, template, [*cells, module.Cell(9, "running_mean = len", None)])
    assert twice.verdict == "error"
    untouched = module.locate(exercise, template, [module.Cell(1, template.shipped(), "1.1")])
    assert untouched.verdict == "not_attempted"
    assert module.helpers([module.Cell(1, "import math\nprint(1)\n", None)], LAB, []) == ["import math"]


def check_blanks(module: ModuleType) -> None:
    template = module.parse("x = a  # SOLUTION\ny = b  # SOLUTION\n", "1.1")
    assert [blank.number for blank in template.blanks] == [1, 2]


def check_lint(module: ModuleType) -> None:
    leaky = from_dict({"cells": [{"cell_type": "code", "source": "# so:\nmean = running_mean(x)"}]})
    assert len(module.leaks(LAB, leaky)) == 1


def check_labs(module: ModuleType) -> None:
    """The answers of an exercise may stand in several modules: lab 1 has those of its bank, and those once accepted."""
    banks = module.Workbook(Path(__file__).parents[2]).lab("01").banks
    assert {"one turn too few", "reads the last 16 tokens only"} <= {wrong.title for wrong in banks["1.3"].wrong}
    assert {"closed form", "NumPy's integers"} <= {right.title for right in banks["1.5"].right}


CHECK_OF = {
    CHECKS: check_checks,
    QUESTIONS: check_questions,
    GUARD: check_guard,
    LOCATE: check_locate,
    BLANKS: check_blanks,
    LINT: check_lint,
    LABS: check_labs,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant(mutant, tmp_path):
    KillTable.record(mutant, CHECK_OF.get(mutant.module, lambda module: check_progress(module, tmp_path)))
