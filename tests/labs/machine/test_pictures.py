"""A picture shows what it was given, and refuses what it cannot show."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from twophase_labs.machine import themes
from twophase_labs.machine.pictures import draw_block_tables


def test_blocks_are_labelled_and_titles_stay_apart():
    tables = {"r1": ([5, 2], 20), "r12": ([5, 7, 1], 33)}
    figure = draw_block_tables(tables, num_blocks=8, block_size=16)
    left, right = figure.axes
    assert {"5", "2", "7", "1", "r1, 20 tokens", "r12, 33 tokens"} <= {text.get_text() for text in left.texts}
    assert {"r10, r120", "r11", "r121", "r122"} <= {text.get_text() for text in right.texts}
    figure.draw_without_rendering()
    titles = [axes.title if axes.title.get_text() else axes._left_title for axes in (left, right)]
    assert not titles[0].get_window_extent().overlaps(titles[1].get_window_extent())
    plt.close(figure)
    with pytest.raises(ValueError, match="A has block 8"):
        draw_block_tables({"A": ([8], 1)}, num_blocks=8, block_size=16)


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
