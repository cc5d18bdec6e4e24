"""Figures that suit a dark theme: drawn on white, and shown inverted with their hues kept."""

import sys
from typing import Any

INVERTED = "filter: invert(.92) hue-rotate(180deg) brightness(1.35) saturate(1.1)"
STYLE = (
    f'<style>body[data-jp-theme-light="false"] .jp-OutputArea-output img, body.vscode-dark img {{ {INVERTED} }}</style>'
)
IMPORT = f"from {__package__.partition('.')[0]} import"


def suit_dark_themes() -> None:
    """Add the style to a notebook's page, as an output of the cell that imports from this package.

    Each time that the cell runs: its outputs go when it is run again, and a module is imported once.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        shell.events.register("post_run_cell", _add_style)


def _add_style(result: Any) -> None:
    from IPython.display import display

    if IMPORT in result.info.raw_cell:
        display({"text/html": STYLE, "text/plain": ""}, raw=True)
