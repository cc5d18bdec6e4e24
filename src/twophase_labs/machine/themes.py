"""Figures that suit a dark theme: drawn on white, and shown inverted with their hues kept."""

import sys

INVERTED = "filter: invert(.9) hue-rotate(180deg)"
STYLE = (
    f'<style>body[data-jp-theme-light="false"] .jp-OutputArea-output img, body.vscode-dark img {{ {INVERTED} }}</style>'
)


def suit_dark_themes() -> None:
    """Add the style to a notebook's page, as an output of the cell that runs; elsewhere nothing happens."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if hasattr(shell, "kernel"):
        from IPython.display import display

        display({"text/html": STYLE, "text/plain": ""}, raw=True)
