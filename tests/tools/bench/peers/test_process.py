"""The protocol with a peer's process, on a toy: answers, noise, failure, death, and that nothing outlives us."""

import os
import sys
import time
from pathlib import Path

import pytest

from twophase_tools.bench.peers.process import Launch, PeerError, PeerProcess

PROMPTS, OUTPUT_LENS = ((1, 2), (3,)), (2, 3)
HERE = str(Path(__file__).parent)


def open_peer(python=sys.executable, fails="", **settings):
    return PeerProcess(Launch(python, "toy_peer", settings, {"PYTHONPATH": HERE, "TOY_FAILS": fails}))


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def start():
    """Starts peers, and ends them after the test."""
    started = []

    def start(*args, **settings):
        started.append(open_peer(*args, **settings))
        return started[-1]

    yield start
    for peer in started:
        peer.close()


def test_runs_and_what_is_known_of_them(start):
    peer = start()
    assert peer.versions["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert "pip" in peer.versions
    for _ in range(2):
        before_s = time.perf_counter()
        answer = peer.run(PROMPTS, OUTPUT_LENS)
        assert answer["token_ids"] == [[3, 3], [3, 3, 3]]
        assert 0 <= max(answer["ttft_s"]) <= answer["elapsed_s"] <= time.perf_counter() - before_s
        assert answer["peak_memory_bytes"] is None or answer["peak_memory_bytes"] >= 0


def test_no_such_interpreter():
    with pytest.raises(PeerError, match="/no/python cannot be started: No such file"):
        open_peer(python="/no/python")


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_not_installed_there_or_not_well(error):
    with pytest.raises(PeerError, match=f"cannot import it: {error}: no toy"):
        open_peer(fails=error)


BEHAVIOUR = {
    "raise": "failed: {}: ValueError: does not fit",
    "die": "failed: {}: it ended with status 3, saying 'out of luck'",
}


@pytest.mark.parametrize("behaviour", BEHAVIOUR)
def test_a_peer_that_fails_while_it_loads_or_in_a_run(start, behaviour):
    with pytest.raises(PeerError, match=BEHAVIOUR[behaviour].format("loading the model")):
        open_peer(loading=behaviour)
    peer = start(running=behaviour, only_for=2)
    pid = peer._process.pid
    assert peer.run(PROMPTS[:1], OUTPUT_LENS[:1])["token_ids"] == [[3, 3]]
    with pytest.raises(PeerError, match=BEHAVIOUR[behaviour].format("a run")):
        peer.run(PROMPTS, OUTPUT_LENS)
    assert not is_alive(pid)


def test_an_interpreter_that_is_none(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho what is this\n")
    python.chmod(0o755)
    with pytest.raises(PeerError, match="it answered 'what is this'"):
        open_peer(python=str(python))


def test_close_ends_it_and_may_come_twice(start):
    peer = start()
    pid = peer._process.pid
    assert is_alive(pid)
    peer.close()
    peer.close()
    assert not is_alive(pid)


def test_it_ends_with_its_input(start):
    """So if this process is killed, nothing stays behind."""
    peer = start()
    peer._process.stdin.close()
    assert peer._process.wait(timeout=30) == 0
