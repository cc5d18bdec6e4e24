"""The map of a lab by its sections, and the minutes that they say."""

from dataclasses import replace

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.commands import labs
from twophase_labs.machine.build import learner_notebook, section_map
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.sections import sections

ADDED = {
    "# <!-- card 1.1 -->\n": "# <!-- opening minutes: 5 -->\n#\n# ## 1. Means of `x` (running)\n# <!-- minutes: 14 -->\n#\n# <!-- card 1.1 -->\n",
    "# <!-- card 1.4 -->\n": "# Still 1.\n#\n# ## 2. Cost\n#\n# <!-- minutes: 6 + 9 -->\n#\n# <!-- card 1.4 -->\n",
}


@pytest.fixture
def second(tmp_path):
    """The demonstration lab with sections that say their minutes; 1.2 is extra."""
    text = LAB.source.read_text()
    for old, new in ADDED.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "labsolutions").mkdir()
    (tmp_path / "labsolutions" / "01_demo.py").write_text(text)
    lab = Workbook(tmp_path, DEMO.package).lab("1")
    lab.__dict__["exercises"] = {i: replace(e, is_extra=i == "1.2") for i, e in LAB.exercises.items()}
    return lab


def test_what_is_in_which_section(second):
    before, means, cost = second.sections
    assert before.title == ""
    assert before.minutes == 5
    assert (means.title, means.minutes, means.exercises) == ("1. Means of `x` (running)", 14, ("1.1", "1.2", "1.3"))
    assert (cost.minutes, cost.exercises) == (6, ("1.4", "1.5", "1.6", "1.7", "1.8"))
    assert "Still 1." in means.prose, "what precedes a heading in its cell belongs to the section before"
    assert "Still 1." not in cost.prose
    assert (means.extra_minutes, cost.extra_minutes) == (0, 9)
    assert (second.minutes, second.extra_minutes) == (25, 9), "what is optional is counted apart"


def test_a_heading_in_a_fence_is_no_heading():
    source = "## One\n```bash\n## two\n```\n## Three"
    cells = [{"cell_type": "markdown", "source": source, "metadata": {}}]
    assert [section.title for section in sections(cells)] == ["", "One", "Three"]


def test_the_map(second):
    points = sum(e.points for e in second.core)
    extra = second.exercises["1.2"].points
    expected = f"""\
| section | minutes | exercises | extra |
| --- | ---: | --- | --- |
| the first cell | 5 |  |  |
| [1. Means of `x` (running)](#1.-Means-of-x-%28running%29) | 14 | 1.1, 1.3 | 1.2 |
| [2. Cost](#2.-Cost) | 6 + 9 | 1.4, 1.5, 1.6, 1.7, 1.8 |  |
| **total** | **25 + 9** | **7 exercises, {points} points** | **1, {extra} extra points** |"""
    assert section_map(second) == expected
    text = "\n".join(cell.source for cell in learner_notebook(second).cells)
    assert expected in text
    assert "## 1. Means of `x` (running)\n*14 minutes*\n" in text
    assert "*6 minutes*, and 9 for *Going further*\n" in text
    assert "<!--" not in text


def test_the_list_of_labs_and_the_course_table_take_the_minutes_of_sections(second, monkeypatch, capsys):

    monkeypatch.setattr(Workbook, "find", lambda: DEMO)
    monkeypatch.setitem(vars(DEMO), "labs", {"01": second, "02": Lab(LAB.source, DEMO.package)})
    assert labs.main([]) == 0
    first, then = capsys.readouterr().out.splitlines()
    assert first.endswith("25 min with reading  and 1 extra")
    assert then.endswith("0 min with reading")


def test_the_course_table_takes_them_too(second, monkeypatch):
    from docs import blocks

    monkeypatch.setattr(Workbook, "find", lambda: DEMO)
    monkeypatch.setitem(vars(DEMO), "labs", {"01": second})
    monkeypatch.setattr(blocks, "COURSE", {"01_demo": "means"})
    monkeypatch.setattr(blocks, "ESTIMATED_MINUTES", {"01_demo": 400})
    assert blocks.course().splitlines()[2].endswith("| 7+1 | 25 min |")
    monkeypatch.setitem(vars(DEMO), "labs", {"01": LAB})
    assert blocks.course().splitlines()[2].endswith("| 8 | 6¾ h |")
