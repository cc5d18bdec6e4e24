"""Shared by every test: shapes are enforced, what can't run here is said, and the kill table is printed."""

import gc
import json
import os
from collections import Counter
from contextlib import nullcontext
from zlib import crc32

# Without a GPU kernels are compiled for the CPU, most of them for one launch: with less optimisation than production has,
# which takes a third of the time. An empty value, given by whoever starts pytest, is production's.
os.environ.setdefault("TRITON_ON_CPU_FLAGS", "-O1")

from tests.enforced_types import enforce_types, unchecked_types

# Not of twophase_kernels: the hooks' decorators would stand between @triton.jit and the kernel's source.
enforce_types("twophase", "twophase_features", "twophase_server", "twophase_tools", "twophase_labs")

import pytest  # noqa: E402

from tests.mutation import KillTable  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run what is marked 'full' (alone: -m full)")
    parser.addoption("--part", type=part, metavar="K/N", help="of what is marked 'full': the tests of one part of N")
    parser.addoption("--only-planted", action="store_true", help="of mutants: only look whether their text is there")


def part(text: str) -> tuple[int, int]:
    """(K, N) of 'K/N'. Raises ValueError unless 1 <= K <= N."""
    k, n = map(int, text.split("/"))
    if not 1 <= k <= n:
        raise ValueError
    return k, n


def pytest_configure(config):
    KillTable.only_planted = config.getoption("--only-planted")
    # The notebooks' and the command line's child processes should not fight the workers for two cores.
    if os.environ.get("PYTEST_XDIST_WORKER"):
        import torch

        torch.set_num_threads(1)


def is_marked(item, name):
    """Not `name in item.keywords`: these hold folders' names too, and a checkout may lie in a folder called gpu."""
    return item.get_closest_marker(name) is not None


# Of a test's mutants `make test` runs each twentieth, `make test-full` the others; `make lint` plants all.
ONE_IN = 20


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(config, items):
    import torch

    k, n = config.getoption("--part") or (1, 1)
    num_mutants = Counter()
    for item in items:
        if is_marked(item, "mutants"):
            test = item.nodeid.partition("[")[0]
            if num_mutants[test] % ONE_IN:
                item.add_marker(pytest.mark.full)
            num_mutants[test] += 1
        if is_marked(item, "gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="not run here: no CUDA device"))
        if is_marked(item, "full") and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="not run here: pass --full"))
    of_other_parts = [item for item in items if is_marked(item, "full") and crc32(item.nodeid.encode()) % n != k - 1]
    config.hook.pytest_deselected(items=of_other_parts)
    others = {item.nodeid for item in of_other_parts}
    items[:] = [item for item in items if item.nodeid not in others]
    longest_first(items)


def pytest_collection_finish(session):
    """What is imported by now stays: the garbage collector need not look through it again and again, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


# What runs the real model, compiles, or starts processes: these files' tests are few and long.
LONG = {"smollm2_folder", "grader"}
LONG_FILES = (
    "kernels/test_aot.py",
    "kernels/test_compiled",
    "kernels/test_paged",
    "labs/machine/test_labs.py",
    "parallel/",
)


def longest_first(items):
    """Files with long tests come first, so that no worker is left alone with one at the end."""
    long = {item.path for item in items if LONG & set(item.fixturenames) or any(f in item.nodeid for f in LONG_FILES)}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with unchecked_types() if is_marked(item, "unchecked_types") else nullcontext():
        return (yield)


def pytest_sessionfinish(session):
    # xdist runs this in each worker too; rows travel to the controller with the worker's output.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kill_table"] = json.dumps(KillTable.rows)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    output = getattr(node, "workeroutput", {})  # a worker that crashed has none
    KillTable.rows += [tuple(row) for row in json.loads(output.get("kill_table", "[]"))]


def pytest_terminal_summary(terminalreporter):
    show_slowest_files(terminalreporter)
    if KillTable.rows:
        show_mutants(terminalreporter)


def show_slowest_files(terminalreporter, num_files=20):
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"slowest {num_files} files")
    for file, duration_s in seconds.most_common(num_files):
        terminalreporter.line(f"{duration_s:7.2f}s {file}")


def show_mutants(terminalreporter):
    killed = sum(how is not None for _, _, how in KillTable.rows)
    terminalreporter.section(f"mutants: {killed} of {len(KillTable.rows)} killed")
    for module, name, how in sorted(KillTable.rows, key=str):
        terminalreporter.line(f"{'killed  ' if how else 'SURVIVED'}  {module}: {name}  <- {(how or '')[:90]}")
