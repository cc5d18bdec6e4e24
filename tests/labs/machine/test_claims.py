"""Numbers in a lab's prose have a cell, a formula or a source; those that have none are found."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.labs.timed import LAB
from twophase_labs.machine import claims
from twophase_labs.machine.build import solved_notebook, to_text
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError

WORKBOOK = Workbook(Path(__file__).parents[3])
SECOND = [number for number, lab in WORKBOOK.labs.items() if lab.minutes is not None]


@pytest.mark.parametrize("number", SECOND)
def test_every_claim_of_a_lab_has_its_cell(number):
    assert claims.problems(WORKBOOK.lab(number)) == []


@pytest.fixture
def told(tmp_path):
    """What is found in a lab made of prose, and of outputs (a tuple: code, then what it prints)."""

    def tell(*cells):
        lab = Lab(tmp_path / "01_demo.py", "tests.labs.timed")
        notebook = nbformat.v4.new_notebook()
        for cell in cells:
            if isinstance(cell, str):
                notebook.cells.append(new_markdown_cell(cell))
            else:
                output = new_output("stream", name="stdout", text=cell[1])
                notebook.cells.append(new_code_cell(cell[0], outputs=[output]))
        lab.__dict__["notebook"] = notebook
        lab.source.with_suffix(".ipynb").write_text(to_text(notebook))
        return [claim.what for claim in claims.unsupported(lab)]

    return tell


PRINTS = ("print(x)", "decode 42.5 ms, 37,748,736 bytes, share 0.383, 1.2e-05")


@pytest.mark.parametrize(
    "text",
    [
        "It took 42.5 ms.",
        "It took 42 ms a step.",
        "These are 36 MiB.",
        "These are 37.7 MB.",
        "That is 38 % of it.",
        "Lab 21, section 14 and exercise 1.30 say more.",
        "There are 12 of them.",
        "$L^{512}$ and `x = 512` and 512 = 2 × 256.",
        "[vLLM](https://docs.vllm.ai) takes 2048 tokens.",
        "The paper (arXiv:2309.06180) measured 2048 tokens.",
        "On an H100 in fp16 with vLLM 0.11.0, SmolLM2-135M, in 2026.",
        "A tile of 42 tokens has three rows each: 126 rows.",
        "Of 132 processors 124 wait, for there are 8 heads.",
        "> **In production, 2026.** By default 8,192 tokens\n> ([source](https://a.b)).",
        "It nearly doubles.",
        "```\n512\n```",
        "This takes the 256 largest (`top(256)`).",
        "The model has 135 million weights.",
    ],
)
def test_what_has_its_support(told, text):
    assert told(PRINTS, text) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("It took 43.5 ms.", "43.5 ms"),
        ("It took 5 ms.", "5 ms"),
        ("There are 512 tokens.", "512"),
        ("That is 39 % of it.", "39 %"),
        ("> **In production, 2026.** By default 8,192 tokens.", "8,192"),
        ("- first\n- 77 things", "77"),
    ],
)
def test_what_has_none(told, text, what):
    assert told(PRINTS, text) == [what]


def test_a_cell_supports_what_comes_after_it(told):
    assert told("It took 42.5 ms.", PRINTS) == ["42.5 ms"]
    assert told(("x = 512", ""), "Of 512 tokens.") == []
    assert told("Of 512 tokens:", ("x = 512", "")) == [], "code says what it sets, and the text before it may, too"
    assert told("## 1. A", "Of 512 tokens.", "## 2. B", ("x = 512", "")) == ["512"]


def test_a_comparison_comes_after_a_measurement_of_its_section(told):
    assert told("## 1. A", PRINTS, "It doubles.", "## 2. B", "It doubles.", PRINTS, "It is twice as fast.") == [
        "doubles"
    ]


def test_an_exercises_own_statement_sets_what_it_asks(told):
    assert told("It took 99 ms.\n<!-- card 1.1 -->\nA server has 80 GB.") == ["99 ms"]


def test_exceptions_have_reasons_and_are_needed(told, tmp_path, monkeypatch):
    told("It took 99 ms.", "It took 98 ms.")
    lab = Lab(tmp_path / "01_demo.py", "tests.labs.timed")
    lab.__dict__["notebook"] = nbformat.read(tmp_path / "01_demo.ipynb", as_version=4)
    own = ModuleType(f"{lab.package}.claims")
    own.__spec__ = ModuleSpec(own.__name__, None)
    own.ALLOWED = {"took 99 ms": "a data sheet's", "took 97 ms": "stale"}
    monkeypatch.setitem(sys.modules, own.__name__, own)
    first, second = claims.problems(lab)
    assert first == "cell 1: '98 ms': It took 98 ms."
    assert second.endswith("no sentence has 'took 97 ms'")


def test_a_notebook_that_was_not_built_is_told(tmp_path, monkeypatch, capsys):
    path = tmp_path / "labsolutions" / "01_demo.py"
    path.parent.mkdir()
    path.write_text(LAB.source.read_text())
    monkeypatch.setattr(Workbook, "find", lambda: Workbook(tmp_path, "tests.labs.timed"))
    with pytest.raises(WorkbookError, match="build it first"):
        claims.unsupported(Lab(path, "tests.labs.timed"))
    path.with_suffix(".ipynb").write_text(to_text(solved_notebook(LAB)))
    assert claims.main(["01"]) == 0
    assert capsys.readouterr().out == "every claim has its cell\n"
    path.write_text(path.read_text().replace("SCALE = 2.0", "SCALE = 3.0"))
    assert claims.main([]) == 2
    assert "not built from 01_demo.py as it is now" in capsys.readouterr().err
