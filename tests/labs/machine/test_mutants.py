"""Small planted bugs in the machine. The tests beside this file, loaded once more on the module with the bug, must fail.

Those tests run that need nothing but their parameters, a folder and pytest's `monkeypatch`.
"""

import importlib
import inspect
import itertools
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.mark.structures import ParameterSet

from tests.enforced_types import unchecked_types
from tests.mutation import KillTable, Mutant

# By module and by the tests that must notice, 'file' or 'file:a part of their names': name of the bug, what stands there, and what is planted.
BUGS = {
    ("checks", "checks"): [
        ("dtype ignored", "if got.dtype != expected.dtype and not is_finer and not any_dtype:", "if False:"),
        ("NaN equals anything", "wrong = ~torch.isclose(", "wrong = ~torch.isnan(left) & ~torch.isclose("),
        ("only some differ", "if not bool(wrong.any()):", "if not bool(wrong.all()):"),
        ("integers through float64", "wrong = got.cpu() != expected.cpu()", "wrong = left != right"),
        ("length ignored", "if len(got) != len(expected):", "if False:"),
        ("changes not looked for", "        if not _is_same(value, before[name]):", "        if False:"),
        ("views by shape", "got.untyped_storage().data_ptr() ==", "got.data_ptr() =="),
        ("finer is another dtype", " and not is_finer and ", " and True and "),
        ("NumPy has no numbers", "if isinstance(value, np.generic):", "if False:"),
        ("a 0-d tensor is no number", "value.item() if value.ndim == 0 and not", "value.item() if False and not"),
        ("whole floats are no ints", "type(got) is float and got.is_integer()", "False"),
        ("halves are whole", "return int(value) if value.is_integer() else None", "return int(value)"),
        ("subclasses of containers are others", "if isinstance(value, base) and", "if False and"),
        ("a number may be a bool", "if type(value) in (int, float) else None", "if isinstance(value, int | float) else None"),
    ],
    ("questions", "questions"): [
        ("an infinite number is finite", "<= sys.float_info.max", "<= float('inf')"),
        ("one side of the tolerance", "abs(value - expected) <= max", "value - expected <= max"),
        ("one pair is enough", "            if wrong:\n", "            if len(wrong) == len(self.right):\n"),
    ],
    ("exercise", "questions"): [
        ("a prediction must be close", 'if self.kind == "prediction" else steps', "if False else steps"),
    ],
    ("judge", "session:raised"): [
        ("any exception has the hint", 'is_finding = verdict == "failed" and', "is_finding ="),
        ("any TypeError is a wrong call", "not learners_line(error)\n", "True\n"),
        ("a wrong call of anything", '{"<lambda>", *exercise.names}.isdisjoint(called["name"].split("."))', "False"),
        ("wrapped exceptions stay wrapped", "    while inner is not None and", "    while False and"),
        ("messages are believed", '    except Exception as fault:\n        return f"(its', '    except OSError as fault:\n        return f"(its'),
    ],
    ("progress", "progress"): [
        ("no folder is made", "self.path.parent.mkdir(parents=True, exist_ok=True)", "pass"),
        ("too deep to read", "OSError, RecursionError) as", "OSError) as"),
        ("broken file overwritten", "self._move_aside(error)", "pass"),
        ("written in place", "os.replace(temporary, self.path)", "self.path.write_text(text)"),
    ],
    ("mutate", "mutate:edit|remembering|source"): [
        ("what is given counts as answered", "return any(a <= start", "return not any(a <= start"),
        ("edits of one line look alike", "if seen[edit.diff] > 1", "if False"),
        ("the tree stays edited", "        finally:\n            _Swap(new, node).visit(tree)", "        finally:\n            pass"),
        ("memory that sees values", "    return type(x)\n\ndef", "    return x\n\ndef"),
    ],
    ("blanks", "blanks:blank"): [("blanks all number one", "number = 1 + sum(", "number = 1 + 0 * sum(")],
    ("bank", "blanks:change|text|pairs"): [
        ("text that occurs twice", "if cell.count(old) != 1:", "if old not in cell:"),
        ("one change of several", "cell = cell.replace(old, new)", "return cell.replace(old, new)"),
    ],
    ("lab", "demo:workbook"): [
        ("one bank hides another", "if len(banks) < len(found):", "if False:"),
        ("any number of digits", r'r"\d{1,2}(?!\d)"', r'r"\d+"'),
    ],
    ("lint", "demo:leak|breaks_a_rule"): [
        ("block lines leak", "if line in cell.source", "if line == cell.source"),
    ],
    ("cards", "handed_in"): [
        ("anything is a picture", ".startswith(PNG)", " is not None"),
        ("markup after a picture", "validate=True", "validate=False"),
    ],
    ("grading.files", "handed_in"): [
        ("devices are read", "if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):", "if False:"),
        ("files of any size", "if len(content) > MAX_MIB * 2**20:", "if False:"),
        ("code of any size", "if size > MAX_CODE:", "if False:"),
        ("cells without end", 'if len(data["cells"]) > MAX_CELLS:', "if False:"),
        ("YAML bombs", "text = text[header.end() :]", "pass"),
        ("a byte order mark is text", 'content.decode("utf-8-sig")', 'content.decode("utf-8")'),
        ("deep progress stops", "AttributeError, RecursionError, MemoryError", "AttributeError"),
        ("escapes reach the terminal", "return shown +", "return str(text) +"),
    ],
    ("grading.locate", "handed_in"): [
        ("any definition will do", "if len(different) > 1:", "if False:"),
        ("untouched is an attempt", "if cell.source.strip() == template.shipped().strip():", "if False:"),
        ("parsed each time", "@cached_property\n    def tree", "@property\n    def tree"),
        ("magics in strings", "    if tree is None:\n        source", "    if True:\n        source"),
        ("await stays", 're.search("await|async", source)', "False"),
        ("deep code stops", "NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)", "NOT_PYTHON = (SyntaxError, ValueError)"),
    ],
    ("grading.helpers", "helpers:run|count"): [
        ("experiments run too", "        except (*NOT_PYTHON, TypeError):  # TypeError: a dictionary of lists as keys\n            return frozenset()", "        except (*NOT_PYTHON, TypeError):\n            pass"),
        ("asked names anywhere", "names.isdisjoint(asked) or (cell.number in answering and not is_alias)", "True"),
        ("the lab's cells below too", "not d.is_shipped or d.cell < answer.number", "True"),
        ("no helpers of helpers", "for word in d.words} - wanted", "for word in ()} - wanted"),
        ("taken names overwritten", " and d.names.isdisjoint(taken)", ""),
    ],
    ("grading.flags", "flags:suspect|pasted|honest_code|edited"): [
        ("the lab's own flagged", " if text not in own}", "}"),
        ("methods called eval", r"(?<![\w.])(?:exec", r"(?:exec"),
        ("one line of a cell", ", re.MULTILINE)", ")"),
        ("names compared", "str(numbers.setdefault(found[1], len(numbers)))", "found[1]"),
        ("short answers copied", "written >= MIN_COPIED", "written >= 0"),
        ("annotations compared", "setattr(node, field, None)", "pass"),
    ],
    ("grading.folder", "handed_in"): [
        ("a long path ends all", "os.path.islink(self.path)", "self.path.is_symlink()"),
        ("one error ends all", "except Exception as error:", "except ZeroDivisionError as error:"),
        ("untouched copies flagged", "if report.digest == mine.digest and mine.num_attempted]", "if report.digest == mine.digest]"),
        ("copies by name", "report.digest == mine.digest", "report.path == mine.path"),
    ],
    ("grading.output", "tables"): [
        ("one kind of formula", "value.startswith(FORMULA)", 'value.startswith("=")'),
        ("results in place", "os.replace(_write_part(path, text), path.resolve())", "path.write_text(text)"),
        ("pipes replaced", "return path.is_file() or not path.exists()", "return True"),
        ("the last notebook counts", "key=lambda report: report.points)\n    return best", "key=lambda report: 0)\n    return best"),
        ("ungraded is zero", '"" if r is None else r.points', "0 if r is None else r.points"),
    ],
    ("grading.gradescope", "gradescope:best|without"): [
        ("extra points count", '"score": report.points,', '"score": report.points + report.extra_points,'),
        ("the first notebook counts", "report = max(reports, key=lambda one: one.points)", "report = reports[0]"),
    ],
    ("grading.grade", "handed_in"): [
        ("attempts as they stand", "type(attempts) is int and 0 <= attempts < 10**6", "attempts"),
        ("a verdict's own words", "reason=plain(verdict.reason)", "reason=verdict.reason"),
        ("numbers revealed", " and isinstance(call.args[0].value, str)", ""),
    ],
    ("grading.lane", "attacks:secrets"): [("secrets passed on", " and not SECRET.search(k)", "")],
    ("grading.run_one", "attacks:travels"): [
        ("any verdict", "verdict.verdict not in get_args(VerdictName) or ", ""),
        ("an answer's word for its exercise", "return replace(verdict, exercise=exercise)", "return verdict"),
    ],
}  # fmt: skip


def through_of(tests):
    return f"tests.labs.machine.test_{tests.partition(':')[0]}"


MUTANTS = [
    (Mutant(name, f"twophase_labs.machine.{module}", old, new, through_of(tests)), tests)
    for (module, tests), bugs in BUGS.items()
    for name, old, new in bugs
]


def cases(test):
    """Each combination of its parameters, without those marked as long."""
    columns = []
    for names, values in (mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"):
        names = names.split(", ") if isinstance(names, str) else names
        rows = [ParameterSet.extract_from(value, force_tuple=len(names) == 1) for value in values]
        columns.append([dict(zip(names, row.values, strict=True)) for row in rows if not row.marks])
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*columns)]


@cache
def running(tests):
    """Runs those tests of a module."""
    wanted = re.compile(tests.partition(":")[2])

    def run(module):
        for name, test in vars(module).items():
            is_long = any(mark.name == "full" for mark in getattr(test, "pytestmark", ()))
            if name.startswith("test_") and wanted.search(name) and not is_long:
                run_one(test)

    return run


def run_one(test):
    wanted = inspect.signature(test).parameters.keys()
    for case in cases(test):
        if wanted - case.keys() <= {"tmp_path", "monkeypatch"}:
            with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
                given = case | {"tmp_path": Path(folder), "monkeypatch": monkeypatch}
                test(**{name: given[name] for name in wanted})


@pytest.mark.full
@pytest.mark.parametrize(("module", "tests"), BUGS)
def test_a_copy_without_a_bug_passes(module, tests):
    """What kills a mutant is its bug, and not that its classes are others than those of the module."""
    text = BUGS[module, tests][0][1]
    importlib.import_module(through_of(tests))
    with unchecked_types():
        running(tests)(Mutant("nothing", f"twophase_labs.machine.{module}", text, text, through_of(tests)).load())


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "tests"), MUTANTS, ids=[mutant.name for mutant, _ in MUTANTS])
def test_mutant(mutant, tests):
    KillTable.record(mutant, running(tests))
