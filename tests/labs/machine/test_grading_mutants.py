"""Small planted bugs in the reading, reporting part of the grader that its tests must notice."""

import base64
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from tests.labs.demo import DEMO, LAB
from tests.mutation import KillTable, Mutant
from twophase.core.errors import TwophaseError
from twophase_labs.machine import blanks
from twophase_labs.machine.grading.folder import Submission
from twophase_labs.machine.grading.grade import Grader, Report, Result
from twophase_labs.machine.grading.locate import Cell
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Workbook, WorkbookError

FILES, LOCATE, HELPERS, FLAGS, FOLDER, OUTPUT, GRADE, LANE, RUN_ONE = (
    f"twophase_labs.machine.grading.{name}"
    for name in "files locate helpers flags folder output grade lane run_one".split()  # noqa: SIM905
)
CARDS, LABS, CLI = "twophase_labs.machine.cards", "twophase_labs.machine.lab", "twophase_labs.commands.grade"

MUTANTS = [
    Mutant("devices are read", FILES, "if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):", "if False:"),
    Mutant("files of any size", FILES, "if len(content) > MAX_MIB * 2**20:", "if False:"),
    Mutant("code of any size", FILES, "if size > MAX_CODE:", "if False:"),
    Mutant("cells without end", FILES, 'if len(data["cells"]) > MAX_CELLS:', "if False:"),
    Mutant("YAML bombs", FILES, "and ANCHOR.search(header[0])", "and False"),
    Mutant("a byte order mark is text", FILES, 'content.decode("utf-8-sig")', 'content.decode("utf-8")'),
    Mutant("deep progress stops", FILES, "AttributeError, RecursionError, MemoryError", "AttributeError"),
    Mutant("escapes reach the terminal", FILES, "return shown +", "return str(text) +"),
    Mutant("parsed each time", LOCATE, "@cached_property\n    def tree", "@property\n    def tree"),
    Mutant("magics in strings", LOCATE, "    if tree is None:\n        source", "    if True:\n        source"),
    Mutant("await stays", LOCATE, 're.search("await|async", source)', "False"),
    Mutant("deep code stops", LOCATE, "NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)", "NOT_PYTHON = (SyntaxError, ValueError)"),
    Mutant("experiments run too", HELPERS, "        except (*NOT_PYTHON, TypeError):  # TypeError: a dictionary of lists as keys\n            return frozenset()", "        except (*NOT_PYTHON, TypeError):\n            pass"),
    Mutant("asked names anywhere", HELPERS, "if cell.number in answering or not asked & names:", "if True:"),
    Mutant("the lab's cells below too", HELPERS, "not d.is_shipped or d.cell < answer.number", "True"),
    Mutant("no helpers of helpers", HELPERS, "for word in d.words} - wanted", "for word in ()} - wanted"),
    Mutant("taken names overwritten", HELPERS, " and d.names.isdisjoint(taken)", ""),
    Mutant("aliases unseen", FLAGS, 'modules.get(name, "?")', 'name or "?"'),
    Mutant("the lab's own flagged", FLAGS, "_names(cell, modules) - known", "_names(cell, modules)"),
    Mutant("strings unseen", FLAGS, "if p.search(text)", "if p.search('')"),
    Mutant("modules in modules unseen", FLAGS, 'if inner and root != "?"', "if False"),
    Mutant("exec by another name", FLAGS, " or node.id in BUILTINS", ""),
    Mutant("a long path ends all", FOLDER, "os.path.islink(self.path)", "self.path.is_symlink()"),
    Mutant("secrets passed on", LANE, " and not SECRET.search(k)", ""),
    Mutant("any verdict", RUN_ONE, "verdict.verdict not in get_args(VerdictName) or ", ""),
    Mutant("an answer's word for its exercise", RUN_ONE, "return replace(verdict, exercise=exercise)", "return verdict"),
    Mutant("names compared", FLAGS, "numbers.setdefault(item, len(numbers))", "item"),
    Mutant("short answers copied", FLAGS, "written >= MIN_COPIED", "written >= 0"),
    Mutant("use in measuring cells", FLAGS, 'if _is_answer(cell) else found - {"use()"}', ""),
    Mutant("one error ends all", FOLDER, "except Exception as error:", "except ZeroDivisionError as error:"),
    Mutant("untouched copies flagged", FOLDER, "if report.digest == mine.digest and mine.num_attempted]", "if report.digest == mine.digest]"),
    Mutant("copies by name", FOLDER, "report.digest == mine.digest", "report.path == mine.path"),
    Mutant("one kind of formula", OUTPUT, "value.startswith(FORMULA)", 'value.startswith("=")'),
    Mutant("results in place", OUTPUT, "os.replace(_write_part(path, text), path.resolve())", "path.write_text(text)"),
    Mutant("pipes replaced", OUTPUT, "return path.is_file() or not path.exists()", "return True"),
    Mutant("anything is a picture", CARDS, ".startswith(PNG)", " is not None"),
    Mutant("markup after a picture", CARDS, "validate=True", "validate=False"),
    Mutant("attempts as they stand", GRADE, "type(attempts) is int and 0 <= attempts < 10**6", "attempts"),
    Mutant("a verdict's own words", GRADE, "reason=plain(verdict.reason)", "reason=verdict.reason"),
    Mutant("numbers revealed", GRADE, " and isinstance(call.args[0].value, str)", ""),
    Mutant("any number of digits", LABS, r'r"\d{1,2}(?!\d)"', r'r"\d+"'),
    Mutant("the submission's own workbook", CLI, "Workbook.find()", "Workbook.find(args.paths[0].parent)"),
    Mutant("rows at the end", CLI, "output.write([*submissions, *of_path])", "pass"),
]  # fmt: skip

MEAN = blanks.parse(
    "def running_mean(x):\n    # BEGIN SOLUTION\n    totals = []\n    for i in range(len(x)):\n"
    "        totals.append(sum(x[: i + 1]) * 2 / (2 * i + 2))\n    return torch.tensor(totals)\n    # END SOLUTION",
    "1.1",
)
REPORT = Report("01_demo", Path("a"), (), (), (), "process", "d1", 1.0)
TRIED = (Result(LAB.exercises["1.6"], Verdict("1.6", "failed", "no")),)


def outcome(call, *args):
    """What a call returned, or the kind of error it raised."""
    try:
        return call(*args)
    except Exception as error:
        return next((kind.__name__ for kind in (TwophaseError,) if isinstance(error, kind)), type(error).__name__)


def check_files(module: ModuleType, folder: Path) -> None:
    assert outcome(module.read_bytes, Path("/dev/null")) == "TwophaseError"
    with open(folder / "large", "wb") as file:
        file.truncate(64 * 2**20 + 1)
    assert outcome(lambda: len(module.read_bytes(folder / "large"))) == "TwophaseError"
    (folder / "large").unlink()
    assert module.text_of(b"\xef\xbb\xbf{}", folder) == "{}"
    cell = b'{"cells": [{"cell_type": "code", "source": "%s"}]}'
    assert outcome(lambda: len(module.parse_notebook(cell % (b"x" * (2**21 + 1)), folder))) == "TwophaseError"
    (folder / "a.progress.json").write_text("[" * 100_000)
    assert outcome(module.progress_of, folder / "a.ipynb") == "TwophaseError"
    assert module.plain("\x1b") == "\\x1b"
    export = b"# ---\n# a: &x [1]\n# b: *x\n# ---\n# %%\nx = 1\n"
    assert outcome(module.parse_notebook, export, Path("a.py")) == "TwophaseError"


def check_locate(module: ModuleType, folder: Path) -> None:
    cell = module.Cell(1, "x = 1", None)
    assert cell.tree is cell.tree, "parsed twice"
    assert module.as_python('"""\n%d items\n"""') == '"""\n%d items\n"""'
    assert module.as_python("await x") == "pass"
    assert outcome(module.parsed, f"x = {'-' * 100_000}1") is None


def check_helpers(module: ModuleType, folder: Path) -> None:
    def wanted(answer, *sources, taken=(), shipped=False):
        cells = [Cell(n, source, None) for n, source in enumerate(sources, start=1)]
        found = [replace(d, is_shipped=shipped) for d in module.definitions(cells, LAB, {})]
        return list(module.needed(found, [answer], Cell(0 if shipped else 9, answer, "9.9"), taken)[0])

    assert wanted("a", "a = len('')") == []
    assert wanted("running_mean", "running_mean = 3") == []
    assert wanted("a", "import a", shipped=True) == []
    assert wanted("f", "import a", "def f(): a") == ["import a", "def f(): a"]
    assert wanted("f", "f = 1", taken=("f",)) == []


def check_flags(module: ModuleType, folder: Path) -> None:
    def found(source):
        return [flag.what for flag in module.flags([Cell(1, source, None)], lab)]

    lab = Workbook(DEMO.root, DEMO.package).lab("1")
    lab.notebook.cells[1].source += "\nimport gc"
    vars(lab)["templates"] = {**lab.templates, "1.1": MEAN}
    assert found("import subprocess as sp\nsp.run()") == ["subprocess", "subprocess.run"]
    assert found("import gc\n2") == []
    assert found("import torch\ntorch.os.fork()") == ["os.fork"]
    assert found("run = exec") == ["exec"]
    assert found("'/proc'") == ["'/proc'"]
    assert found(MEAN.filled().replace("totals", "sums")) == ["1.1, names changed"]
    assert found(MEAN.filled().replace("2", "3")) == []
    assert found(LAB.templates["1.8"].filled()) == []
    assert found("mean = use('1.1')") == []
    assert found("def f(x): return use('1.1')(x)") == ["use()"]


def check_lane(module: ModuleType, folder: Path) -> None:
    with patch.dict(os.environ, {"HF_TOKEN": "hunter2"}):
        assert "hunter2" not in module.clean_environment().values()


def check_run_one(module: ModuleType, folder: Path) -> None:
    line = module.as_line(Verdict("1.1", "passed", ""))
    assert module.from_line(line, "1.2").exercise == "1.2"
    assert outcome(module.from_line, line.replace(b"passed", b"hacked"), "1.1") == "ValueError"


def check_folder(module: ModuleType, folder: Path) -> None:
    class Failing(Grader):
        def grade(self, path):
            raise MemoryError

    graded = outcome(module.grade_one, Failing(DEMO, 1), Path("a"), "ann")
    assert getattr(graded, "problem", graded) == "grading failed: MemoryError: "
    digests = {"ann": "d1", "bob": "d1", "cleo": "d2"}
    for results, told in [(TRIED, [True, True, False]), ((), [False] * 3)]:
        reports = [replace(REPORT, digest=digest, path=Path("x"), results=results) for digest in digests.values()]
        all_of = [module.Submission(n, Path(n), r) for n, r in zip(digests, reports, strict=True)]
        assert [any("the same file" in flag for flag in s.flags(all_of)) for s in all_of] == told
    long = module.Submission("ann", folder / "/".join(["d" * 50] * 85))
    assert outcome(long.flags) == []


def check_output(module: ModuleType, folder: Path) -> None:
    submissions = [Submission("@ann", Path("a"), replace(REPORT, results=TRIED))]
    assert "\n'@ann," in module.to_csv(submissions)
    for old in folder.iterdir():
        old.unlink()
    os.mkfifo(folder / "pipe")
    module.Output(csv=folder / "pipe").write(submissions)
    assert (folder / "pipe").is_fifo()
    table = module.Output(csv=folder / "a.csv")
    table.write(submissions)
    with open(folder / "a.csv") as reading:
        table.write([])
        assert "@ann" in reading.read(), "whoever reads the table finds half of the next"


def check_cards(module: ModuleType, folder: Path) -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n...").decode()
    assert "<img" in module.picture_html(png)
    assert module.picture_html("YWJj") == ""
    assert module.picture_html(f'{png}"><script>') == ""


def check_grade(module: ModuleType, folder: Path) -> None:
    assert [module._number(value) for value in (3, "abc", None, float("inf"), -1)] == [3, 0, 0, 0, 0]
    assert module._shown(Verdict("1.1", "failed", "\x1b")).reason == "\\x1b"
    assert module._reveals([Cell(1, "reveal('1.6'), reveal(16)", None)]) == {"1.6"}


def check_lab(module: ModuleType, folder: Path) -> None:
    assert outcome(module.Workbook(DEMO.root, DEMO.package).lab, "1" * 5000) in ("WorkbookError", "TwophaseError")


def check_cli(module: ModuleType, folder: Path) -> None:
    asked = []

    def find(*start):
        asked.append(start)
        raise WorkbookError("none")

    with patch("twophase_labs.machine.lab.Workbook.find", find):
        assert module.main([str(folder / "a.ipynb")]) == 2
    assert asked == [()]

    def grade_one(grader, path, learner):
        if learner == "b":
            raise KeyboardInterrupt
        return Submission(learner, path, replace(REPORT, results=TRIED))

    kept = patch("twophase_labs.machine.grading.grade.Grader", lambda *args: contextlib.nullcontext())
    (folder / "o.csv").unlink(missing_ok=True)
    with (
        kept,
        patch("twophase_labs.machine.grading.folder.grade_one", grade_one),
        contextlib.suppress(KeyboardInterrupt),
    ):
        module.main([*(str(folder / name) for name in ("a.ipynb", "b.ipynb")), "--csv", str(folder / "o.csv")])
    assert (folder / "o.csv").exists(), "the first row is not on disk"


CHECK_OF = {
    FILES: check_files,
    LOCATE: check_locate,
    HELPERS: check_helpers,
    FLAGS: check_flags,
    FOLDER: check_folder,
    OUTPUT: check_output,
    GRADE: check_grade,
    CARDS: check_cards,
    LABS: check_lab,
    LANE: check_lane,
    RUN_ONE: check_run_one,
    CLI: check_cli,
}


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant(mutant, tmp_path):
    KillTable.record(mutant, lambda module: CHECK_OF[mutant.module](module, tmp_path))
