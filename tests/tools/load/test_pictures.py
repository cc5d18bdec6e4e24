"""A picture shows what it was given: marks are counted, places are read back."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from tests.tools.load.timeline import RECORDS, STEPS
from twophase_tools.load import pictures


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def boxes(axes, colour):
    """(row, start, end) of the boxes of one colour."""
    found = []
    for collection in axes.collections:
        if not isinstance(collection, matplotlib.collections.PatchCollection):
            continue
        if matplotlib.colors.same_color(collection.get_facecolor()[0], colour):
            for path in collection.get_paths():
                (x0, y0), (x1, y1) = path.get_extents().get_points()
                found.append((round((y0 + y1) / 2), round(x0, 6), round(x1, 6)))
    return found


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_swim_lanes_by_hand():
    figure = pictures.draw_swim_lanes(RECORDS, STEPS, title="three")
    axes = figure.axes[0]
    colours = pictures.SPAN_COLOURS
    assert boxes(axes, colours["waiting"]) == [(0, 0, 1), (1, 4, 11), (2, 12, 51), (3, 15, 65)]
    assert boxes(axes, colours["prefill"]) == [(0, 1, 9), (0, 61, 69), (1, 11, 19), (1, 21, 29), (2, 51, 59)]
    assert boxes(axes, colours["decode"]) == [(0, 11, 19), (0, 21, 29), (1, 41, 49)]
    assert boxes(axes, colours["preempted"]) == [(0, 50, 61)]
    assert boxes(axes, colours["paused"]) == [(0, 29, 50)]
    (ticks,) = (c for c in axes.collections if isinstance(c, matplotlib.collections.LineCollection))
    at = [(round(segment[:, 1].mean()), segment[0, 0]) for segment in ticks.get_segments()]
    assert sorted(at) == [(0, 10), (0, 20), (0, 30), (0, 70), (1, 30), (1, 50), (2, 60)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B", "C", "D"]
    assert axes.get_xlabel().endswith(", s")
    assert axes.get_title(loc="left") == "three"
    assert len(figure.legends[0].get_texts()) == 6


def test_batches_by_hand():
    axes = pictures.draw_batch_composition(STEPS).axes[0]
    decodes, prefills = axes.containers
    assert [bar.get_height() for bar in decodes] == [0, 1, 1, 1, 0, 0]
    assert [(bar.get_y(), bar.get_height()) for bar in prefills] == [(0, 8), (1, 3), (1, 2), (1, 0), (0, 2), (0, 10)]


def test_nothing_can_be_drawn(tmp_path):
    for figure in (
        pictures.draw_swim_lanes([], []),
        pictures.draw_lane_panels({"none": ([], [])}),
        pictures.draw_batch_composition([], token_budget=5),
    ):
        figure.savefig(tmp_path / "empty.png")
