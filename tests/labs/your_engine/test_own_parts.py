"""Parts from a learner's notebooks: their own where they pass, the reference's with a reason elsewhere."""

import json
import re
from pathlib import Path

import pytest

from twophase_labs.machine.lab import Workbook, WorkbookError
from twophase_labs.machine.own_parts import own_parts

NAMES = "ngram_draft", "verify", "names_to_ask", "block_hashes"


def source(lab, name):
    """The id of the exercise that asks for a name, and its solved cell."""
    exercise = next(e for e in lab.exercises.values() if name in e.names)
    return exercise.id, lab.templates[exercise.id].filled()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Lab 5 with a right drafter that has a helper in another cell, a wrong verifier, a cell that raises, an untouched
    one."""
    folder, lab = tmp_path_factory.mktemp("labs"), Workbook.find().lab("05")
    cells = {name: source(lab, name) for name in NAMES}
    helped = cells["ngram_draft"][1].replace("token_ids[-n:]", "newest_of(token_ids, n)")
    sources = [
        ("helper", "def newest_of(ids, n):\n    return ids[-n:]"),
        (cells["ngram_draft"][0], helped),
        (cells["verify"][0], cells["verify"][1].replace("return [*tokens, chance.draw(left)]", "return tokens")),
        (cells["names_to_ask"][0], cells["names_to_ask"][1] + "\n1 / 0"),
        (cells["block_hashes"][0], lab.templates[cells["block_hashes"][0]].shipped()),
    ]
    assert helped != cells["ngram_draft"][1]
    notebook = {
        "cells": [
            {"cell_type": "code", "source": text, "metadata": {"tags": [f"exercise:{i}"]}, "outputs": []}
            for i, text in sources
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    Path(folder, f"{lab.name}.ipynb").write_text(json.dumps(notebook))
    return own_parts(*NAMES, folder=folder)


def test_what_passes_is_yours_with_its_helpers(found):
    (part,) = found.yours
    assert (part.exercise.names[0], part.cell) == ("ngram_draft", 2)
    assert found["ngram_draft"]([7, 1, 2, 3, 4, 1, 2], 3) == [3, 4, 1]
    assert "newest_of" in found["ngram_draft"].__code__.co_names


def test_elsewhere_the_reference_stands_in_and_says_why(found):
    reasons = {part.exercise.names[0]: part.why_not for part in found.parts}
    assert reasons["block_hashes"] == "not attempted"
    raised = r"its cell raises ZeroDivisionError: division by zero \(line \d+ of the cell\)"
    assert re.fullmatch(raised, reasons["names_to_ask"])
    assert reasons["verify"]
    assert found["names_to_ask"](["a", "b", "c"], 12, 4, {"z"}) == ["a", "b"]
    assert f"reference: {reasons['verify']}" in repr(found)


def test_without_notebooks_all_are_the_reference(tmp_path):
    found = own_parts("ngram_draft", folder=tmp_path)
    assert "does not exist" in found.parts[0].why_not
    assert found["ngram_draft"]([7, 7, 7], 3) == [7]


def test_an_empty_folder_of_labs(tmp_path):
    (tmp_path / "labsolutions").mkdir()
    with pytest.raises(WorkbookError, match=r"no labs found in .*labsolutions"):
        own_parts("verify", folder=tmp_path, workbook=Workbook(tmp_path))


def test_a_name_that_no_exercise_asks_for(tmp_path):
    with pytest.raises(WorkbookError, match="no exercise asks for my_engine"):
        own_parts("my_engine", folder=tmp_path)
