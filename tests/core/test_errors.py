"""Every error of the packages goes through pickle and copy as it is: to other processes, and into records."""

import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

import twophase
import twophase_features
import twophase_server
import twophase_tools
from twophase.core.errors import TwophaseError


def errors():
    """All errors of the packages' modules, whether something has imported these or not."""
    found = set()
    for package in (twophase, twophase_features, twophase_server, twophase_tools):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            if re.search(r"^class \w+Error\(", path.read_text(encoding="utf-8"), re.MULTILINE):
                name = ".".join((package.__name__, *path.relative_to(folder).with_suffix("").parts))
                classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
                found |= {kind for _, kind in classes if issubclass(kind, TwophaseError)}
    return found


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_survive_pickle_and_copy(again):
    assert len(errors()) > 20
    for kind in errors():
        error = kind.__new__(kind, "a message")  # as any __init__ leaves it: what it takes does not matter
        vars(error).update(status=429, ranks=(1, 2))
        twin = again(error)
        assert (type(twin), str(twin), vars(twin)) == (kind, "a message", vars(error))
