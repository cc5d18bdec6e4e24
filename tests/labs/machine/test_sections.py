"""The map of a lab by its sections, and the minutes that they say."""

from dataclasses import replace

import pytest

from docs import blocks
from tests.labs.demo import DEMO, LAB
from twophase_labs.commands import labs
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.sections import sections


@pytest.fixture
def lab():
    """The demonstration lab, in which 1.2 is extra."""
    made = Lab(LAB.source, DEMO.package)
    vars(made)["exercises"] = {i: replace(e, is_extra=i == "1.2") for i, e in LAB.exercises.items()}
    return made


def test_what_is_in_which_section(lab):
    before, means, cost = lab.sections
    assert (before.title, before.minutes) == ("", 5)
    assert (means.title, means.minutes, means.exercises) == ("1. Means of `x` (running)", 14, ("1.1", "1.2", "1.3"))
    assert (cost.minutes, cost.exercises) == (6, ("1.4", "1.5", "1.6", "1.7", "1.8"))
    assert "**In production" in means.prose, "what precedes a heading in its cell belongs to the section before"
    assert "**In production" not in cost.prose
    assert (means.extra_minutes, cost.extra_minutes) == (0, 9)
    assert (lab.minutes, lab.extra_minutes) == (25, 9), "what is optional is counted apart"
    source = "## One\n```bash\n## two\n```\n## Three"
    cells = [{"cell_type": "markdown", "source": source, "metadata": {}}]
    assert [section.title for section in sections(cells)] == ["", "One", "Three"], "a fence holds no headings"


def test_the_list_of_labs_and_the_course_table_take_the_minutes_of_sections(lab, monkeypatch, capsys):
    monkeypatch.setattr(Workbook, "find", lambda: DEMO)
    monkeypatch.setitem(vars(DEMO), "labs", {"01": lab})
    assert labs.main([]) == 0
    assert (
        capsys.readouterr().out
        == "01_demo                   7 exercises   12 points   25 min with reading  and 1 extra\n"
    )
    monkeypatch.setattr(blocks, "COURSE", {"01_demo": "means"})
    assert blocks.course().splitlines()[2].endswith("| 7+1 | 25 min |")
