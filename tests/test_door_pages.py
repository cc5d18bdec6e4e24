"""Each door's page has a complete example. It runs, and prints what the page says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "doors").glob("*.md"))
MOST_LINES = 36


def example_of(page: Path) -> tuple[str, str]:
    """The page's program and its output."""
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "text"], f"{page.name} has one example and its output"
    return blocks[0][1], blocks[1][1]


def test_the_pages_are_found():
    assert {page.stem for page in PAGES} == {"allocator", "drafter", "policy", "tier"}


@pytest.mark.unchecked_types  # as readers run them
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_example_prints_what_its_page_says(page):
    program, expected = example_of(page)
    assert len([line for line in program.splitlines() if line.strip()]) <= MOST_LINES
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(page), "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == expected
