"""What `make docs` does before and after Sphinx: links led to pages, figures put in, broken links found."""

from pathlib import Path

import nbformat

from docs.conf import keep_as_written
from docs.site import ROOT, Stage, broken_links


def test_links_to_sources_get_pages_and_others_stay(tmp_path):
    page = "[a](../src/twophase/llm.py) [b](log.md) [c](https://a.b/c.py) [d](../tests/cache) [e](#here) [`f[0]`](../LICENSE)"
    stage = Stage(tmp_path)
    got = stage._with_links(page, Path("docs"))
    assert got == (
        "[a](../sources/src/twophase/llm.py.md) [b](log.md) [c](https://a.b/c.py) [d](../sources/tests/cache.md) "
        "[e](#here) [`f[0]`](../sources/LICENSE.md)"
    )
    stage._write_sources()
    assert "class LLM" in (tmp_path / "sources/src/twophase/llm.py.md").read_text()
    assert "test_histories.py" in (tmp_path / "sources/tests/cache.md").read_text()


def test_a_lab_is_shown_with_its_blanks_and_its_figures_but_no_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.site._diagram", lambda match: "a picture")
    path = Path("labs/01_autoregression.ipynb")
    shipped = nbformat.read(ROOT / path, as_version=4)
    shown = Stage(tmp_path)._with_figures(path)
    assert [cell.id for cell in shown.cells] == [cell.id for cell in shipped.cells]
    codes = [cell for cell in shown.cells if cell.cell_type == "code"]
    assert any("____(" in cell.source for cell in codes)
    assert not any(cell.outputs for cell in codes if "____(" in cell.source or cell.source.startswith("check("))
    assert sum("image/png" in output.get("data", {}) for cell in codes for output in cell.outputs) > 10
    assert not any("```mermaid" in cell.source for cell in shown.cells)


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">1</a><a href="#top">2</a><a href="https://a.b">3</a><img src="c.png">'
        '<a href="b.html#gone">4</a><a href="d.html">5</a><a href="b.html?x=1">6</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here">B</p>')
    assert broken_links(tmp_path) == ["a.html: c.png", "a.html: b.html#gone", "a.html: d.html"]


def test_indented_lines_of_a_docstring_are_kept_as_written():
    lines = ["Says |what|.", "", "    a  b", "    c  d", "After.", "- item", "  goes on", "Args:", "    x: One."]
    keep_as_written(None, "function", "f", None, None, lines)
    text = "\n".join(lines)
    assert text.startswith("Says \\|what\\|.\n")
    assert "\n::\n\n    a  b\n    c  d\n\nAfter." in text
    assert "- item\n  goes on" in text
    assert text.endswith("Args:\n    x: One.")
