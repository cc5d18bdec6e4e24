"""Every error of the packages goes through pickle and copy as it is: to other processes, and into records."""

import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

import twophase
import twophase_server
import twophase_tools
from twophase.core.errors import PeerLostError, TwophaseError
from twophase_labs.machine.unfilled import UnfilledError
from twophase_server.errors import ApiError
from twophase_tools.bench.clients import RefusedError
from twophase_tools.load.replay import TraceFileError

# The arguments of those that take other things than a message.
ARGUMENTS = {
    PeerLostError: ((1, 2), "a sum", 3.5, "it was silent"),
    RefusedError: (429, "full", 3.0),
    TraceFileError: (Path("trace.csv"), 3, "at", "x", "must be a time"),
    ApiError: (429, "later", "queue_full", "stream", {"retry-after": "3"}),
    UnfilledError: ("1.3", 2, "the logits"),
}


def errors():
    """All errors of the packages' modules, whether something has imported these or not."""
    found = set(ARGUMENTS)
    for package in (twophase, twophase_server, twophase_tools):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            if re.search(r"^class \w+Error\(", path.read_text(encoding="utf-8"), re.MULTILINE):
                name = ".".join((package.__name__, *path.relative_to(folder).with_suffix("").parts))
                classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
                found |= {value for _, value in classes if issubclass(value, TwophaseError)}
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_survive_pickle_and_copy(again):
    kinds = errors()
    assert len(kinds) > 20
    for kind in kinds:
        error = kind(*ARGUMENTS.get(kind, ("a message",)))
        error.add_note("a note")
        twin = again(error)
        assert (type(twin), str(twin), twin.args) == (kind, str(error), error.args)
        assert vars(twin) == vars(error)
