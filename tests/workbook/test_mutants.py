"""Small planted bugs in the machine that its tests must notice."""

import contextlib
import json
import socket
import threading
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from nbformat import from_dict

from tests.mutation import KillTable, Mutant
from tests.workbook.demo import DEMO, LAB
from twophase.workbook.build import solved_notebook
from twophase.workbook.checks import Rejected
from twophase.workbook.judge import Verdict

CHECKS, QUESTIONS, PROGRESS = (f"twophase.workbook.{name}" for name in ("checks", "questions", "progress"))
GUARD, LOCATE, BLANKS = "twophase.workbook.guard", "twophase.workbook.grading.locate", "twophase.workbook.blanks"
LINT = "twophase.workbook.lint"
LANE, VERDICTS, WIRE, REMOTE = (f"twophase.workbook.grading.{name}" for name in ("lane", "verdicts", "wire", "remote"))

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
    Mutant("added methods unseen", GUARD, "names = (now.keys() | was.keys())", "names = set(was)"),
    Mutant("not restored", GUARD, "vars(module).update(before)", "pass"),
    Mutant("private names unwatched", GUARD, "(is_own or not name.startswith", "(not name.startswith"),
    Mutant("code unwatched", GUARD, "for function, code in self._codes:", "for function, code in ():"),
    Mutant("objects unwatched", GUARD, "snapshots = [(found, tuple(", "snapshots = [(found, tuple() and tuple("),
    Mutant("any worker's word", LANE, ' or answer["nonce"] != nonce', ""),
    Mutant("secrets passed on", LANE, " and not SECRET.search(k)", ""),
    Mutant("any verdict", VERDICTS, 'if data["verdict"] not in get_args(VerdictName):', "if False:"),
    Mutant("any exercise", VERDICTS, 'if data["exercise"] != exercise:', "if False:"),
    Mutant("any picture", VERDICTS, "    if not is_png:", "    if False:"),
    Mutant("something follows", WIRE, "if self._at != len(self._data):", "if False:"),
    Mutant("in-place changes lost", WIRE, "for number in changed:", "for number in changed[:0]:"),
    Mutant("lies stay lies", WIRE, "if self._handles.coerces and plain is not None:", "if False:"),
    Mutant("a check's lists shared", REMOTE, "given if self.coerces else self._copied(given)", "given"),
    Mutant("modules named", REMOTE, "value, ModuleType | FrameType |", "value, FrameType |"),
    Mutant("private read", REMOTE, 'if name.startswith("_") or isinstance(target', "if isinstance(target"),
    Mutant("an answer refuses", REMOTE, " and not issubclass(cls, Rejected)", ""),
    Mutant("equal by its own word", REMOTE, "OPERATORS if not self.coerces else TRUSTED", "TRUSTED"),
    Mutant("any definition will do", LOCATE, "if len(different) > 1:", "if False:"),
    Mutant("untouched is an attempt", LOCATE, "if cell.source.strip() == template.shipped().strip():", "if False:"),
    Mutant("experiments run too", LOCATE, "if _is_definition(node) and not", "if not"),
    Mutant("blanks all number one", BLANKS, "number = 1 + sum(", "number = 1 + 0 * sum("),
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


def check_guard_of_own_parts(module: ModuleType) -> None:
    from twophase.workbook import checks, judge

    watched, tried, code = {"checks": 1}, judge._try, checks.reject.__code__
    guard = module.Guard()
    guard.watch(watched)
    try:
        judge._try = print
        checks.reject.__code__ = code.replace(co_name="other")
        watched["checks"] = 2
        found = guard.replaced()
        guard.restore()
    finally:
        judge._try, checks.reject.__code__ = tried, code
    assert found == [
        "twophase.workbook.judge._try", "twophase.workbook.checks.reject.__code__", "dict.checks",
    ]  # fmt: skip
    assert watched == {"checks": 1}


def check_lane(module: ModuleType) -> None:
    lane = module.Lane(DEMO, LAB)
    verdict = json.loads(json.dumps(Verdict("1.1", "passed", "").to_json()))
    assert lane._verdict(LAB.exercises["1.1"], "a", {"nonce": "a", "verdict": verdict}).passed
    with contextlib.suppress(module.BadVerdictError):
        lane._verdict(LAB.exercises["1.1"], "a", {"nonce": "b", "verdict": verdict})
        raise AssertionError("another nonce was accepted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "x")
        patch.setenv("HF_HOME", "y")
        assert "HF_TOKEN" not in module.clean_environment()
        assert "HF_HOME" in module.clean_environment()


def check_verdicts(module: ModuleType) -> None:
    good = json.loads(json.dumps(Verdict("1.1", "passed", "").to_json()))
    assert module.verdict_from(good, "1.1").passed
    for wrong in ({"verdict": "hacked"}, {"exercise": "1.2"}, {"picture": '"><script>'}):
        with contextlib.suppress(module.BadVerdictError):
            module.verdict_from({**good, **wrong}, "1.1")
            raise AssertionError(f"{wrong} was accepted")


class Plain:
    """Handles for values that need none."""

    coerces = True

    def name_of(self, value):
        return True, 0, "", ()

    mine = theirs = may_build = name_of


def check_wire(module: ModuleType) -> None:
    here, there = module.Table(), module.Table()

    def sent(value, more=b""):
        data = bytes(module.Writer(here, Plain()).message(value)) + more
        return module.Reader(memoryview(data), there, Plain()).message()

    items = [1]
    got = sent(items)
    items.append(2)
    assert sent(items) is got
    assert got == [1, 2]
    with contextlib.suppress(module.WireError):
        sent(1, b"N")
        raise AssertionError("something followed")
    assert type(sent(type("Lie", (int,), {})(3))) is int


def check_remote(module: ModuleType) -> None:
    def forgets(model):
        model.asked.clear()

    class Model:
        asked: ClassVar = [1]
        _hidden = 2

    class Yes:
        def __eq__(self, other):
            return True

        __hash__ = object.__hash__

    def refuses():
        raise Rejected("mine")

    class Lying(module.Rules):
        operators = module.TRUSTED_OPERATORS

    mine, its = socket.socketpair()
    there = {
        "forgets": forgets,
        "takes": lambda value: None,
        "yes": Yes(),
        "refuses": refuses,
        "peek": lambda model: model._peer.ask("get", model, "_hidden"),
    }
    check = module.Peer(mine, module.TrustedRules("tests"))
    answer = module.Peer(its, Lying(), {"fetch": there.__getitem__})
    thread = threading.Thread(target=answer.serve, daemon=True)
    thread.start()
    try:
        check.ask("fetch", "forgets")(Model())
        assert Model.asked == [1]
        assert check.ask("fetch", "yes") != 5
        for name, args in (("peek", [Model()]), ("refuses", []), ("takes", [torch])):
            try:
                check.ask("fetch", name)(*args)
            except Rejected:
                raise AssertionError("an answer spoke as the check") from None
            except Exception:
                continue
            raise AssertionError(f"{name} was allowed")
    finally:
        mine.close()
        thread.join(5)
        its.close()


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


CHECK_OF = {
    CHECKS: check_checks,
    QUESTIONS: check_questions,
    LANE: check_lane,
    VERDICTS: check_verdicts,
    WIRE: check_wire,
    REMOTE: check_remote,
    LOCATE: check_locate,
    BLANKS: check_blanks,
    LINT: check_lint,
}


def check_both_guards(module: ModuleType) -> None:
    check_guard(module)
    check_guard_of_own_parts(module)


CHECK_OF[GUARD] = check_both_guards


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant(mutant, tmp_path):
    KillTable.record(mutant, CHECK_OF.get(mutant.module, lambda module: check_progress(module, tmp_path)))
