"""Ways in turns: a round that warms up, each way second as often."""

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.bench.turns import in_turns


def test_turns():
    log = []
    ways = {name: lambda number, name=name: log.append((name, number)) or (name, number) for name in "ab"}
    assert in_turns(ways, 2) == {"a": [("a", 1), ("a", 2)], "b": [("b", 1), ("b", 2)]}
    assert log == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]


def test_no_round_is_refused():
    with pytest.raises(ConfigError, match="--repeats"):
        in_turns({}, 0)
