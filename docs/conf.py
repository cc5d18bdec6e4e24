"""Sphinx's settings for the site. `make docs` stages the pages (docs/site.py) and builds them with these."""

import re
from typing import Any

project = "twophase"
copyright = "the twophase contributors, under the MIT licence"
html_title = "twophase"
root_doc = "index"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # docstrings with Args and Raises
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]

# Notebooks are shown as they were saved.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # a notebook's sections may skip a level
    "ref.python",  # `TwophaseError` is one class, under two names
]

myst_heading_slug_func = "docs.site.section_name"

# Docstrings are plain English: what stands in single backquotes is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_use_rtype = False
napoleon_use_ivar = True  # autodoc lists a class's fields already
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False


SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Note|Example)s?:")
ITEM = re.compile(r"[-*] |\d+\. ")


def keep_as_written(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Indented lines before a docstring's sections are code, tables or pictures: they become literal blocks."""
    end = next((i for i, line in enumerate(lines) if SECTION.fullmatch(line)), len(lines))
    found: list[str] = []
    last = ""  # the latest line that was not indented
    is_literal = False
    for line in lines[:end]:
        is_indented = line.startswith("  ") and not ITEM.match(last)
        if is_indented and not is_literal:
            found += ["", "::", ""]
        if is_literal and line and not is_indented:
            found.append("")
        if line:
            is_literal = is_indented
        if line and not line.startswith(" "):
            last = line
        found.append(line if is_literal else line.replace("|", "\\|"))
    lines[:end] = [*found, ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", keep_as_written, priority=400)  # before napoleon reads the sections
