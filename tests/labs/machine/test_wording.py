"""One word for one thing: other words are found, with few false alarms, wherever a learner reads them."""

import ast
from pathlib import Path

import pytest

from tests.labs.timed import LAB
from twophase_labs.machine import wording
from twophase_labs.machine.lab import Lab
from twophase_labs.machine.wording import Text, found_in, prose_of, strings_of

MACHINE = Path(wording.__file__).parent
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


@pytest.mark.parametrize("module", MODULES)
def test_the_machine_keeps_to_it_too(module):
    texts = strings_of(ast.parse((MACHINE / module).read_text()))
    assert found_in([Text(module, text) for text in texts]) == []
