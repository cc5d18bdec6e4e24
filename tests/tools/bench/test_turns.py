"""Ways in turns: a round that warms up, each way second as often, and whoever is out of the race is left out."""

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.bench.turns import in_turns, median_of


def test_turns():
    log = []
    ways = {name: lambda number, name=name: log.append((name, number)) or (name, number) for name in "ab"}
    assert in_turns(ways, 2) == {"a": [("a", 1), ("a", 2)], "b": [("b", 1), ("b", 2)]}
    assert log == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]


def test_who_is_out_of_the_race_runs_no_more():
    found = in_turns(dict.fromkeys("ab", lambda number: number), 3, lambda found: ["a"] if found["b"] else found)
    assert found == {"a": [1, 2, 3], "b": [1]}


def test_no_round_is_refused():
    with pytest.raises(ConfigError, match="--repeats"):
        in_turns({}, 0)


def test_median_of():
    assert median_of([(3, 1), (9, 1), (4, 1)], lambda pair: pair[0]) == 4.0
