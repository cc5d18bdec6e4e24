"""One page about a learner's engine, to keep and to show: whose parts, the same tokens, what each part is worth."""

import base64
import html
import os
from collections.abc import Mapping, Sequence
from datetime import date
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twophase_labs.kit.draw import bar_panels
from twophase_labs.machine.own_parts import OwnParts
from twophase_labs.machine.progress import DIRECTORY_VARIABLE
from twophase_labs.your_engine.engine import Result
from twophase_tools.bench.machine import cpu_name

OTHER_ANSWERS = "without grammar"
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100%; background: white; border-radius: 6px }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .9rem .2rem 0; text-align: left }
"""


def draw_ways(results: Mapping[str, Result]) -> Figure:
    """Steps, tokens per second and median time to first token: a panel each, a bar for each engine.

    The engine whose answers are others is hatched: its bars are not to be compared.
    """
    columns: dict[str, tuple[list[float], str]] = {
        "steps": ([float(one.num_steps) for one in results.values()], "{:.0f}"),
        "tokens per second": ([one.tokens_per_s for one in results.values()], "{:.1f}"),
        "median time to first token (ms)": ([1e3 * one.median_ttft_s for one in results.values()], "{:.0f}"),
    }
    figure, panels = bar_panels(results, columns, "")
    for axes in panels:
        for bar, name in zip(axes.patches, results, strict=True):
            if name == OTHER_ANSWERS:
                bar.set(hatch="////", alpha=0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    figure.tight_layout()
    return figure


def write_page(
    mine: OwnParts, results: Mapping[str, Result], slo: tuple[float, float], folder: Path | None = None
) -> Path:
    """Write my_engine.html, with its picture in it, and my_engine.png.

    Args:
        results: The first is the engine that the others are compared with, token for token.
        slo: Seconds to the first token and per token, for the goodput.
        folder: None: beside the notebook.
    """
    results = {name.replace("your", "my"): one for name, one in results.items()}  # here the learner speaks
    folder = folder or Path(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd())
    figure, picture = draw_ways(results), BytesIO()
    figure.savefig(picture, format="png", dpi=144)
    plt.close(figure)
    (folder / "my_engine.png").write_bytes(picture.getvalue())
    page = folder / "my_engine.html"
    page.write_text(_page(mine, results, slo, base64.b64encode(picture.getvalue()).decode()), encoding="utf-8")
    return page


def _page(mine: OwnParts, results: Mapping[str, Result], slo: tuple[float, float], picture: str) -> str:
    first = next(iter(results.values()))
    parts = [("exercise", "names", "whose", "lines")]
    for part in mine.parts:
        _, exercise, names, whose, lines = part.row
        parts.append((exercise, names, whose if part.why_not else "mine", lines))
    ways = [("engine", "the same answers", "steps", "tokens/s", "median TTFT", "goodput, requests/s")]
    for name, one in results.items():
        same = f"{one.num_equal(first)} of {len(one.token_ids)}"
        times = f"{one.tokens_per_s:.1f}", f"{1e3 * one.median_ttft_s:.0f} ms", f"{one.goodput(*slo):.2f}"
        ways.append((name, same, str(one.num_steps), *times))
    about = f"{date.today().isoformat()}, {cpu_name()}, one thread, SmolLM2-135M in float32"
    ttft_s, tpot_s = slo
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>My inference engine</title>"
        f"<style>{STYLE}</style><h1>My inference engine</h1>"
        f"<p>{len(mine.yours)} of {len(mine.parts)} parts are mine. {html.escape(about)}. "
        f"{len(first.token_ids)} requests, a new one every third step. The reference is the course's engine with parts "
        "of its own; each row below my engine is mine without one part.</p>"
        f"<img alt='Steps, tokens per second, time to first token' src='data:image/png;base64,{picture}'>"
        f"{_table(ways)}<p>Goodput counts requests with a first token within {1e3 * ttft_s:.0f} ms and "
        f"at most {1e3 * tpot_s:.0f} ms per token after it.</p>{_table(parts)}</html>\n"
    )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Its first row is the heading."""
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        lines.append("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
