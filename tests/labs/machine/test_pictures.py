"""A picture shows what it was given, and refuses what it cannot show."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from twophase_labs.machine import themes
from twophase_labs.machine.pictures import draw_block_tables


@pytest.mark.parametrize(
    ("requests", "in_tables", "in_pool"),
    [
        (
            {"A": ([5, 2], 20), "B": ([5, 7, 1], 33)},
            {"5", "2", "7", "1", "A, 20 tokens", "B, 33 tokens"},
            {"A0, B0", "A1", "B1", "B2"},
        ),
        ({"r1": ([5, 2], 20), "r12": ([3], 1)}, set(), {"r10", "r11", "r120"}),
    ],
)
def test_blocks_are_labelled_and_titles_stay_apart(requests, in_tables, in_pool):
    figure = draw_block_tables(requests, num_blocks=8, block_size=16)
    tables, pool = figure.axes
    assert in_tables <= {text.get_text() for text in tables.texts}
    assert in_pool <= {text.get_text() for text in pool.texts}
    figure.draw_without_rendering()
    titles = [axes.title if axes.title.get_text() else axes._left_title for axes in (tables, pool)]
    assert not titles[0].get_window_extent().overlaps(titles[1].get_window_extent())
    plt.close(figure)


def test_a_block_outside_the_picture_is_refused():
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
