"""A function in a worker process: its result, its error, and the limits it cannot pass."""

import os
import sys

import pytest

from twophase.core.errors import InvalidRequestError
from twophase_features.structured_outputs.worker_process import WorkerProcess, WorkLimitError

needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="not run here: no limits on time and memory")


@pytest.fixture(scope="module")
def worker():
    worker = WorkerProcess(cpu_s=1.0, max_bytes=64 * 2**20, first=(note, "first"))
    yield worker
    worker.close()


def spin():
    while True:
        pass


def fill():
    return len(bytearray(2**30))


def die():
    os._exit(3)


def refuse(what):
    raise InvalidRequestError(f"no {what}")


def say(text):
    print(text)
    return os.getpid()


def test_a_function_runs_elsewhere_and_its_result_comes_back(worker):
    first = worker.call(say, "what is printed is no answer")
    assert first != os.getpid()
    assert worker.call(say, "again") == first, "one process answers all calls"


def test_an_error_comes_back_as_it_was_raised(worker):
    with pytest.raises(InvalidRequestError, match=r"^no bananas$"):
        worker.call(refuse, "bananas")


@needs_limits
@pytest.mark.parametrize(
    ("function", "told"),
    [(spin, "longer than 1 s of processor time"), (fill, "more memory than it may"), (die, "ends its process, with 3")],
)
def test_a_limit_ends_the_function_and_not_the_next_one(worker, function, told):
    with pytest.raises(WorkLimitError, match=told):
        worker.call(function)
    assert worker.call(len, "alive") == 5


_noted: list[str] = []


def note(what):
    _noted.append(what)


def noted():
    return os.getpid(), _noted


@needs_limits
def test_each_process_does_something_first():
    worker = WorkerProcess(cpu_s=1.0, max_bytes=64 * 2**20, first=(note, "first"))
    before = worker.call(noted)
    with pytest.raises(WorkLimitError):
        worker.call(die)
    after = worker.call(noted)
    worker.close()
    assert before[0] != after[0]
    assert before[1] == after[1] == ["first"]
    assert _noted == []
