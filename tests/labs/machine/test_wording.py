"""One word for one thing: other words are found, with few false alarms, wherever a learner reads them."""

import ast
from pathlib import Path

import pytest

from tests import wording
from tests.labs.timed import LAB
from tests.wording import Text, found_in, prose_of, strings_of
from twophase_labs.machine import glossary
from twophase_labs.machine.lab import Lab, Workbook

WORKBOOK = Workbook(Path(__file__).parents[3])
MACHINE = Path(glossary.__file__).parent
# What a learner reads of the machine: cards, verdicts, pictures.
MODULES = ("session.py", "cards.py", "judge.py", "questions.py", "checks.py", "pictures.py", "unfilled.py", "build.py")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("which page holds it", "page"),
        ("a seat in the batch", "seat"),
        ("in each iteration of the engine", "iteration"),
        ("the log-sum of each half", "log-sum"),
        ("two users wait", "users wait"),
        ("A request is turned away", "turned away"),
        ("Somebody has to wait", "Somebody"),
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


def test_strings_of_a_program():
    source = 'def f(axes):\n    """A page of text."""\n    print(f"the page {axes} has", "page")\n'
    assert set(strings_of(ast.parse(source))) == {"the page "}


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


@pytest.mark.parametrize("number", sorted(WORKBOOK.labs))
def test_a_lab_keeps_to_it(number):
    assert wording.problems(WORKBOOK.lab(number)) == []


def test_messages_of_a_chapter_are_looked_at():
    names = {text.where for text in wording.texts_of(LAB)}
    assert {"basics.py", "01_demo.py, cell 0"} <= names
    assert "sources.py" not in names


def test_in_a_kernel_a_page_is_a_block():
    assert found_in([Text("here", "the page of each position", is_kernel=True)]) == []
    assert found_in([Text("here", "the seat of each position", is_kernel=True)])


def test_the_table():
    lines = glossary.as_markdown().split("\n")
    assert len(lines) == 2 + len(glossary.TERMS)
    assert all(line.count("|") == 4 for line in lines)
    assert found_in([Text(term.name, prose_of(term.meaning)) for term in glossary.TERMS]) == []
    assert len({term.name for term in glossary.TERMS}) == len(glossary.TERMS)
    assert all(any(word in term.name for term in glossary.TERMS) for word in wording.OTHER_WORDS)


def test_every_exception_has_its_reason():
    assert all(len(reason) > 10 for reason in wording.ALLOWED.values())


@pytest.mark.parametrize("module", MODULES)
def test_the_machine_keeps_to_it_too(module):
    texts = strings_of(ast.parse((MACHINE / module).read_text()))
    assert found_in([Text(module, text) for text in texts]) == []
