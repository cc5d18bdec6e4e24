"""What the pictures of the lab say."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import Rectangle

from twophase_labs.advanced import prefix_pictures


def test_only_blocks_of_several_requests_are_framed():
    rows = {
        "Ann": [("a", b"one"), ("b", b"two"), ("c", None)],
        "Ben": [("a", b"one"), ("d", b"three"), ("c", None)],
        "Cem": [("e", b"four"), ("b", b"five")],
    }
    figure = prefix_pictures.draw_chains(rows)
    (axes,) = figure.axes
    blocks = [one for one in axes.patches if type(one) is Rectangle]
    framed = {(one.get_x(), one.get_y()) for one in blocks if one.get_linewidth() > 3}
    assert framed == {(0, 0), (0, 1)}
    face = {(one.get_x(), one.get_y()): one.get_facecolor() for one in blocks}
    assert face[0, 0] == face[0, 1]
    assert not {face[0, 2], face[1, 2]} & {colour for (_, row), colour in face.items() if row < 2}
    plt.close(figure)


@pytest.mark.parametrize("computed", [[496, 176, 16], [16, 176]])
def test_the_line_is_that_of_the_shortest_prefill(computed):
    figure = prefix_pictures.draw_first_tokens(computed, [one / 100 for one in computed], 496)
    assert [text.get_text() for text in figure.axes[0].texts] == ["16 tokens: 160 ms"]
    plt.close(figure)
