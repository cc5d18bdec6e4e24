"""Lab 2's kernel in view in lab 3: the learner's own cell, or the one with blanks."""

import pytest

from twophase_labs.decode.earlier_kernel import EXERCISE, prefill_kernel
from twophase_labs.machine.notebooks import nbformat

CELL = '@triton.jit\ndef paged_prefill_kernel():\n    """One program: mine."""\n    heads = 7'


def notebook_with(*cells):
    made = [nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells]
    return nbformat.writes(nbformat.v4.new_notebook(cells=made))


def test_it_is_the_learners_own(tmp_path):
    text = notebook_with(("heads = 6", ["exercise:2.7"]), (CELL, [f"exercise:{EXERCISE}"]))
    (tmp_path / "02_prefill.ipynb").write_text(text)
    assert prefill_kernel(tmp_path).code == '    """One program: mine."""\n    heads = 7'


@pytest.mark.parametrize("text", [None, "", "{", "[]", notebook_with(("heads = 6", []))])
def test_without_it_the_blanks_are_shown(tmp_path, text):
    if text is not None:
        (tmp_path / "02_prefill.ipynb").write_text(text)
    found = prefill_kernel(tmp_path)
    assert found.where == "exercise 2.8, with its blanks"
    assert found.code.startswith('    """One program: BLOCK_Q tokens')
    assert f'____("{EXERCISE}", 1,' in found.code


def test_a_cell_that_was_rewritten_is_shown_whole(tmp_path):
    (tmp_path / "02_prefill.ipynb").write_text(notebook_with(("def mine(): ...", [f"exercise:{EXERCISE}"])))
    assert prefill_kernel(tmp_path).code == "def mine(): ..."
