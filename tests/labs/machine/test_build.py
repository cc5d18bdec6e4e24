"""One source makes two notebooks; a rebuild changes nothing, and any drift is found."""

import nbformat
import pytest

from twophase_labs.machine import build

SOURCE = "# %% [markdown]\n# # A lab\n\n# %%\nprint(6 * 7)\n"


@pytest.fixture
def repository(tmp_path):
    for folder in ("labs", "labsolutions"):
        (tmp_path / folder).mkdir()
    (tmp_path / "labsolutions" / "99_lab.py").write_text(SOURCE)
    return tmp_path


def run(root, *args):
    return build.main(["--root", str(root), *args])


def test_builds_both_and_reproducibly(repository):
    assert run(repository) == 0
    solved = repository / "labsolutions" / "99_lab.ipynb"
    learner = repository / "labs" / "99_lab.ipynb"
    assert nbformat.read(solved, 4).cells[1].outputs[0].text == "42\n"
    assert nbformat.read(learner, 4).cells[1].outputs == []
    before = solved.read_bytes(), learner.read_bytes()
    assert run(repository) == 0
    assert (solved.read_bytes(), learner.read_bytes()) == before
    assert run(repository, "--check") == 0


def test_drift_is_found(repository, tmp_path, capsys):
    assert run(tmp_path / "labs") == 2
    assert "repository's top folder" in capsys.readouterr().err
    assert run(repository, "--check") == 1
    assert "labs/99_lab.ipynb is missing" in capsys.readouterr().err
    assert run(repository) == 0
    solved = repository / "labsolutions" / "99_lab.ipynb"
    notebook = nbformat.read(solved, 4)
    notebook.cells[1].execution_count = None
    nbformat.write(notebook, solved)
    assert run(repository, "--check") == 1
    assert "was not executed" in capsys.readouterr().err
    (repository / "labsolutions" / "99_lab.py").write_text(SOURCE.replace("6", "5"))
    assert run(repository, "--check") == 1
    assert capsys.readouterr().err.count("differs") == 2
