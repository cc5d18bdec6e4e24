"""One word for one thing: other words are found, with few false alarms, wherever a learner reads them."""

import ast
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from tests.labs.timed import LAB
from twophase_labs.machine import glossary, wording
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.wording import Text, found_in, odd_definitions, prose_of, strings_of

MACHINE = Path(wording.__file__).parent
# What a learner reads of the machine: cards, verdicts, pictures.
MODULES = ("session.py", "cards.py", "judge.py", "questions.py", "checks.py", "pictures.py", "unfilled.py", "build.py")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("which page holds it", "page"),
        ("Pages of 16 tokens", "Pages"),
        ("the last page of the sequence", "page"),
        ("a seat in the batch", "seat"),
        ("in each iteration of the engine", "iteration"),
        ("a decode pass reads", "decode pass"),
        ("each query block reads the keys", "query block"),
        ("576 numbers per token", "numbers per token"),
        ("the known tokens are skipped", "known tokens"),
        ("verify the guesses", "guesses"),
        ("the log-sum of each half", "log-sum"),
        ("a promise of 2 s", "a promise"),
        ("two users wait", "users wait"),
        ("two readers", "readers"),
        ("A request is turned away", "turned away"),
        ("Somebody has to wait", "Somebody"),
        ("it is dearer", "dearer"),
    ],
)
def test_another_word_is_found(text, word):
    (told,) = found_in([Text("here", text)])
    assert told.startswith(f"here: {word!r} (")


@pytest.mark.parametrize(
    "text",
    [
        "PagedAttention and the paged kernels", "the constant PAGE is a block", "as an operating system does with pages",
        "This page takes five minutes", "documented on the web page", "one forward pass", "turn the page table upside down",
        "your guess", "iteration-level scheduling, Orca's term", "the log-sum-exp of both", "a user message",
        "--page-size is 1", "vLLM does not promise it", "one user's text", "the number of heads", "it was found by search", "the slot of a token", "a block of keys and values", "every turnout",
    ],
)  # fmt: skip
def test_what_may_stand(text):
    assert found_in([Text("here", text)]) == []


def test_code_is_no_prose():
    assert prose_of("Use `page_ids` as\n```python\npage = 1\n```\n[there](https://a/page) <!-- page -->").split() == [
        "Use", "`code`", "as", "[there]",
    ]  # fmt: skip


def test_strings_of_a_program_that_are_shown():
    source = '''
"""A page."""
def f(axes):
    """A page of text."""
    axes.set_xlabel("page")
    axes.plot(label="seat", data={"page": 3})
    print(f"the page {axes} has", "page")
'''
    assert set(strings_of(ast.parse(source))) == {"page", "seat", "the page "}


def test_all_that_a_learner_reads_of_a_lab_is_looked_at(tmp_path):
    path = tmp_path / "01_demo.py"
    text = LAB.source.read_text()
    for old, new in (
        ("# Each value without", "# Each page without"),
        ("# a remark", "# a page"),
        ("SCALE = 2.0", 'SCALE = 2.0\nprint("one seat")'),
        ("# SOLUTION: a number", "# SOLUTION: somebody"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    told = "\n".join(wording.problems(Lab(path, "tests.labs.timed")))
    for word in ("page", "seat", "somebody"):
        assert repr(word) in told
    assert told.count("'page'") == 2
    assert wording.problems(LAB) == []


def test_messages_of_a_chapter_are_looked_at():
    names = {text.where for text in wording.texts_of(LAB)}
    assert {"basics.py", "01_demo.py, cell 0"} <= names
    assert "sources.py" not in names


def test_in_a_kernel_a_page_is_a_block():
    assert found_in([Text("here", "the page of each position", is_kernel=True)]) == []
    assert found_in([Text("here", "the seat of each position", is_kernel=True)])


def test_a_chapter_may_have_reasons_of_its_own(monkeypatch, tmp_path):
    path = tmp_path / "01_demo.py"
    path.write_text(
        LAB.source.read_text().replace("# Each value without", "# Somebody played a song. Each value without")
    )
    lab = Lab(path, "tests.labs.timed")
    assert len(wording.problems(lab)) == 1
    own = ModuleType(f"{lab.package}.wording")
    own.__spec__ = ModuleSpec(own.__name__, None)
    own.ALLOWED_WORDS = {"Somebody played a song": "the haystack"}
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert wording.problems(lab) == []


@pytest.mark.parametrize(
    ("text", "is_odd"),
    [
        ("The cache is cut into **blocks**: memory for 16 tokens each.", False),
        ("A **block** is what a child plays with. Memory is another thing.", True),
        ("A **step** of the engine runs the model once.", False),
        ("**Think first.** What is a step?", False),
    ],
)
def test_a_bold_definition_has_the_meaning_of_the_glossary(text, is_odd):
    assert bool(odd_definitions([Text("here", text)])) == is_odd


def test_the_table():
    lines = glossary.as_markdown().split("\n")
    assert len(lines) == 2 + len(glossary.TERMS)
    assert all(line.count("|") == 4 for line in lines)
    assert found_in([Text(term.name, prose_of(term.meaning)) for term in glossary.TERMS]) == []
    assert len({term.name for term in glossary.TERMS}) == len(glossary.TERMS)


def test_every_exception_has_its_reason():
    assert all(len(reason) > 10 for reason in wording.ALLOWED.values())


@pytest.mark.parametrize("module", MODULES)
def test_the_machine_keeps_to_it_too(module):
    texts = strings_of(ast.parse((MACHINE / module).read_text()))
    assert found_in([Text(module, text) for text in texts]) == []


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(Workbook, "find", lambda: Workbook(LAB.source.parents[1], "tests.labs.timed"))
    assert wording.main(["01"]) == 0
    assert capsys.readouterr().out == "one word for one thing\n"
