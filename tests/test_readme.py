"""The README and the pages of docs/: links lead somewhere, and what commands print and draw has not drifted."""

import json
import re
from pathlib import Path

import pytest

from docs import blocks, pictures
from docs.generate import IMAGES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FEATURES = (
    (ROOT / "docs" / "features.md")
    .read_text(encoding="utf-8")
    .split("| feature | how to switch it on |")[1]
    .split("\n\n")[0]
    .splitlines()[2:]
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def links_in(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))


def headings(page: Path) -> set[str]:
    """As JupyterLab names a notebook's, with hyphens for spaces; as GitHub names those of a page."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        return {title.replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in links_in(page):
        if "://" in link:
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        if section:
            assert section in headings(target), f"{link}: there is no such section"


def test_every_feature_has_its_lab_its_source_and_its_test():
    assert len(FEATURES) >= 10
    for row in FEATURES:
        targets = re.findall(r"\]\(([^)]+)\)", row)
        for folder in (
            "../labs/",
            ("../src/twophase/", "../src/twophase_features/", "../src/twophase_tools/", "../src/twophase_server"),
            "../tests/",
        ):
            assert any(target.startswith(folder) for target in targets), f"{folder} is missing in {row}"


@pytest.mark.parametrize("name", blocks.BLOCKS)
def test_a_block_says_what_its_command_prints(name):
    shown = [found[name] for page in blocks.PAGES if name in (found := blocks.blocks_in(page.read_text("utf-8")))]
    assert shown
    assert set(shown) == {blocks.BLOCKS[name]()}, "run `python -m docs.generate`"


def test_the_life_of_a_token_follows_the_lines_of_step():
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    told = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    lines = blocks.step()
    places = [lines.index(line) for line in told if lines.count(line) == 1]
    assert len(places) == len(told) >= 6
    helpers = set(re.findall(r"self\.(_\w+)\(", lines)) - {"_clock"}
    assert helpers <= set(re.findall(r"\w+", " ".join(told))), "a part of step() that the page does not tell of"


def test_a_block_is_printed_anew_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCKS", {"one": lambda: "new"})
    page = "before\n<!-- begin one -->\nold\n<!-- end one -->\nafter"
    printed = blocks.with_blocks(page)
    assert printed == "before\n<!-- begin one -->\nnew\n<!-- end one -->\nafter"
    assert blocks.blocks_in(printed) == {"one": "new"}
    assert blocks.with_blocks(printed) == printed


# Opening the model twice takes long; one of the pictures that need it is drawn in every run.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name == "shared_prefix.svg" else ()) for name in pictures.PICTURES],
)
def test_a_picture_shows_what_its_command_draws(name):
    drawn = pictures.as_svg(pictures.PICTURES[name]())
    assert pictures.is_same_picture(drawn, (IMAGES / name).read_text(encoding="utf-8")), "run `python -m docs.generate`"


def test_every_picture_is_shown_with_its_words():
    shown = {}
    for page in PAGES:
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            shown[(page.parent / path).resolve()] = words
    assert {IMAGES / name for name in pictures.PICTURES} == set(shown)
    assert all(len(words) > 20 for words in shown.values())


def test_the_readme_is_a_front_door():
    assert len(README.splitlines()) <= 120
