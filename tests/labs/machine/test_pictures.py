"""A picture shows what it was given, and refuses what it cannot show."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from twophase_labs.decode import run_pictures
from twophase_labs.machine import themes
from twophase_labs.machine.pictures import draw_block_tables
from twophase_tools.colours import DECODE, PREFILL
from twophase_tools.load import pictures


def test_shared_and_partial_blocks_are_labelled():
    figure = draw_block_tables({"A": ([5, 2], 20), "B": ([5, 7, 1], 33)}, num_blocks=8, block_size=16)
    tables, pool = figure.axes
    assert {"5", "2", "7", "1", "A, 20 tokens", "B, 33 tokens"} <= {text.get_text() for text in tables.texts}
    assert {"A0, B0", "A1", "B1", "B2"} <= {text.get_text() for text in pool.texts}
    plt.close(figure)


def test_a_name_may_end_in_a_digit_and_titles_stay_apart():
    figure = draw_block_tables({"r1": ([5, 2], 20), "r12": ([3], 1)}, num_blocks=8, block_size=16)
    tables, pool = figure.axes
    assert {"r10", "r11", "r120"} <= {text.get_text() for text in pool.texts}
    figure.draw_without_rendering()
    titles = [axes.title if axes.title.get_text() else axes._left_title for axes in (tables, pool)]
    assert not titles[0].get_window_extent().overlaps(titles[1].get_window_extent())
    plt.close(figure)


def test_a_block_outside_the_picture_is_refused():
    with pytest.raises(ValueError, match="A has block 8"):
        draw_block_tables({"A": ([8], 1)}, num_blocks=8, block_size=16)


def test_prefill_and_decode_have_one_colour_each():
    assert pictures.SPAN_COLOURS["prefill"] == run_pictures.PREFILL_STYLE["facecolor"] == PREFILL
    assert pictures.SPAN_COLOURS["decode"] == run_pictures._decode_style(1)["facecolor"] == DECODE


def test_each_cell_that_names_the_course_has_the_style_for_dark_themes(monkeypatch):
    shown, callbacks = [], []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data["text/html"]))
    events = SimpleNamespace(register=lambda event, callback: callbacks.append((event, callback)))
    for shell in (None, object(), SimpleNamespace(kernel=1, events=events)):
        monkeypatch.setattr("IPython.get_ipython", lambda shell=shell: shell)
        themes.suit_dark_themes()
    ((event, callback),) = callbacks
    assert event == "post_run_cell"
    for source in ("from twophase_labs import check", "1 + 1", "from twophase_labs import check"):
        callback(SimpleNamespace(info=SimpleNamespace(raw_cell=source)))
    assert shown == [themes.STYLE] * 2
