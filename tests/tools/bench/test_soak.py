"""`bench soak`: a good server keeps its promises, and each fault that is planted in one breaks the promise it should."""

import json
from dataclasses import replace

import pytest

from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase_tools.bench import soak as soak_module
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.server_process import Sample, ServerProcess, ServerProcessError, free_port
from twophase_tools.bench.soak import Books, bench_soak
from twophase_tools.bench.soak_clients import Tally
from twophase_tools.bench.soak_report import Promise, SoakReport

PROMISES = [
    "each request is answered or told why not",
    "no request is stuck",
    "nothing is stuck in the engine",
    "no block leaks",
    "no thread is left over",
    "no file descriptor is left over",
    "memory is flat",
    "SIGTERM loses no accepted request",
    "a server started after it serves",
    "who waits for a dead engine is told",
    "/ready turns red",
    "who comes later is told, too",
    "a server whose engine died stops",
]


def test_a_good_server_keeps_its_promises(twophase):  # noqa: F811
    exit_code, out, err = twophase("bench", "soak", "--clients", 8, "--seconds", 4, "--json")
    found = json.loads(out)
    assert [promise["words"] for promise in found["promises"]] == PROMISES
    assert [p for p in found["promises"] if p["is_held"] is False] == [], err
    assert (exit_code, found["passed"], found["breaches"]) == (0, True, [])
    held = {promise["words"] for promise in found["promises"] if promise["is_held"]}
    assert held >= set(PROMISES) - {"memory is flat"}  # too short to tell
    kinds = {kind for kind, _, _ in found["outcomes"]}
    assert kinds <= {"well-formed", "slow reader", "vanishing", "garbage", "too much"}
    assert found["num_requests"] == sum(count for _, _, count in found["outcomes"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("leak", "no block leaks"),
        ("silence", "each request is answered or told why not"),
        ("drop", "SIGTERM loses no accepted request"),
    ],
)
def test_a_fault_breaks_its_promise(monkeypatch, fault, broken):
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setattr(soak_module, "REST_LIMIT_S", 5.0)
    report = bench_soak(num_clients=8, duration_s=6, server="tests.tools.bench.faulty_server")
    assert broken in {promise.words for promise in report.promises if promise.is_held is False}
    assert not report.passed
    assert "BROKEN" in report.to_text()


# -- verdicts, from figures made by hand

IDLE = Books(0, 0, 0, 3, 7, Sample(1000, 4, 10))


def judged(before=IDLE, after=IDLE, duration_s=300.0):
    """The promises that are about an idle server."""
    soak = object.__new__(soak_module._Soak)
    soak._promises, soak._duration_s = [], duration_s
    soak._judge_idle(before, after)
    return {promise.words: promise.is_held for promise in soak._promises}


HELD = dict.fromkeys(PROMISES[2:7], True)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"num_running": 1}, ["nothing is stuck in the engine"]),
        ({"num_waiting": 1}, ["nothing is stuck in the engine"]),
        ({"blocks_in_use": 1, "blocks_free": 6}, ["no block leaks"]),
        ({"blocks_free": 6}, ["no block leaks"]),
        ({"blocks_cached": 10, "blocks_free": 0}, []),
        ({"sample": Sample(1050, 4, 10)}, []),
        ({"sample": Sample(1051, 4, 10)}, ["memory is flat"]),
        ({"sample": Sample(500, 4, 10)}, []),
        ({"sample": Sample(1000, 4, 12)}, []),
        ({"sample": Sample(1000, 4, 13)}, ["no file descriptor is left over"]),
        ({"sample": Sample(1000, 4 + soak_module.POOL_THREADS, 9)}, []),
        ({"sample": Sample(1000, 5 + soak_module.POOL_THREADS, 9)}, ["no thread is left over"]),
    ],
)
def test_what_an_idle_server_must_not_hold(changes, broken):
    assert judged(after=replace(IDLE, **changes)) == HELD | dict.fromkeys(broken, False)


def test_what_cannot_be_told_is_not_held_and_not_broken():
    short = judged(after=replace(IDLE, sample=Sample(9999, 4, 10)), duration_s=10.0)
    assert short == HELD | {"memory is flat": None}
    unseen = judged(after=replace(IDLE, sample=None))
    assert unseen == HELD | dict.fromkeys(PROMISES[4:7])


def test_the_report():
    promises = (Promise("a", True, "1"), Promise("b", None, "2"))
    report = SoakReport(2, 4.0, 0, 3, (("well-formed", "answered", 3),), (), promises, record_machine())
    assert report.passed
    lines = report.to_text().splitlines()
    assert lines[0] == "2 clients for 4 s, seed 0: 3 requests to a tiny random model"
    assert [line.split() for line in lines[2:4]] == [["held", "a", "1"], ["not", "run", "b", "2"]]
    assert "every promise is held" in lines
    assert not replace(report, promises=(*promises, Promise("c", False, "3"))).passed


def test_breaches_are_all_counted_and_the_first_are_kept():
    tally = Tally()
    for number in range(30):
        assert tally.breach("garbage", f"breach {number}") == f"BROKEN: breach {number}"
    assert (tally.num_breaches, len(tally.breaches), tally.breaches[0]) == (30, 20, "garbage: breach 0")


def test_metrics_are_read():
    text = (
        '# HELP\ntwophase:kv_cache_blocks{model_name="m",state="free"} 7.0\ntwophase:num_requests_running{m="x"} 1.0\n'
    )
    assert soak_module._metric(text, 'kv_cache_blocks{.*state="free"') == 7
    assert soak_module._metric(text, "num_requests_running") == 1
    with pytest.raises(ConfigError, match="another version"):
        soak_module._metric(text, "num_requests_waiting")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--clients", 0), "--clients"),
        (("--clients", 100_000), "--clients must be in"),
        (("--seconds", 1), "--seconds must be in"),
        (("--seconds", "nan"), "--seconds must be in"),
        (("--seconds", "inf"), "--seconds must be in"),
    ],
)
def test_what_cannot_be_is_refused(twophase, options, message):  # noqa: F811
    exit_code, out, err = twophase("bench", "soak", *options)
    assert (exit_code, out) == (2, "")
    assert message in err


def test_a_server_that_does_not_start_is_quoted(tmp_path):
    import asyncio

    server = ServerProcess("twophase_tools", ["serve", "--model", str(tmp_path)], free_port(), tmp_path / "log", {})
    try:
        with pytest.raises(ServerProcessError, match=r"(?s)ended with 2.*config\.json"):
            asyncio.run(server.ready())
        assert server.sample() is None
    finally:
        server.kill()
