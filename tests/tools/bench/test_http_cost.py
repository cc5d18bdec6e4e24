"""`bench http`: both sides answer the same requests, and the cost is the ratio of their throughputs."""

import json

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase_tools.bench.http_cost import CostError, HttpReport, Round, Sizes
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.serve import ServingRun
from twophase_tools.load.records import RequestRecord


def run_of(*reasons):
    records = tuple(
        RequestRecord(str(i), 10.0, 10.0, (11.0, 11.5, 13.0), 13.0, 4, finish_reason=reason)
        for i, reason in enumerate(reasons)
    )
    return ServingRun(records, (), (10.0, 14.0), (("1", "429: busy"),), False)


def test_a_round_by_hand():
    """Two requests of 3 tokens in 4 s; first tokens after 1 s; gaps of 0.5 and 1.5 s."""
    assert Round.of(run_of("length", "stop")) == Round(1.5, 1.0, 1.0)
    assert Round.of(run_of("length", "stop"), 3.0) == Round(1.5, 1.0, 1.0, 0.5)


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_round_with_a_request_that_failed_is_none(reason):
    with pytest.raises(CostError, match="1 of 2 requests were not answered; the first: 429: busy"):
        Round.of(run_of("length", reason))


@pytest.mark.parametrize(
    ("ratios", "cost", "verdict"),
    [
        ((0.92, 0.99, 0.91), 0.08, "kept"),
        ((0.9, 0.85, 0.5), 0.15, "missed"),
        ((0.95, 0.89, 1.2), 0.05, "undecided: the rounds disagree"),
    ],
)
def test_the_report(ratios, cost, verdict):
    rounds = {"in process": (Round(100.0, 1.0, 0.1),) * 3, "HTTP": tuple(Round(100 * x, 1.1, 0.1) for x in ratios)}
    report = HttpReport(16, Sizes(), rounds, ratios, {}, record_machine())
    assert report.cost == pytest.approx(cost)
    assert f"({min(ratios):.3f} to {max(ratios):.3f}): it costs {100 * cost:.1f} %" in report.to_text()
    assert f"less than 10 %, is {verdict}." in report.to_text()
    assert report.to_dict()["verdict"] == verdict


def test_processor_time_by_hand():
    """Ratios of 1.1, 1.2 and 1.5: their median says 20 % more."""
    here = tuple(Round(1.0, 1.0, 1.0, 2.0) for _ in range(3))
    http = tuple(Round(1.0, 1.0, 1.0, 2.0 * ratio) for ratio in (1.5, 1.1, 1.2))
    report = HttpReport(16, Sizes(), {"in process": here, "HTTP": http}, (1.0,), {}, record_machine())
    assert report.cpu_cost == pytest.approx(0.2)
    assert "Processor time per token: +20.0 %." in report.to_text()


def test_the_command(twophase, tiny_folder):  # noqa: F811
    options = ("--device", "cpu", "--quick", "--concurrency", 2, "--json")
    exit_code, out, err = twophase("bench", "http", "--model", tiny_folder, *options)
    assert exit_code == 0, err
    found = json.loads(out)
    assert {side: len(rounds) for side, rounds in found["rounds"].items()} == {"in process": 1, "HTTP": 1}
    assert len(found["ratios"]) == 1
    assert found["cost"] == pytest.approx(1 - found["ratios"][0])


@pytest.mark.parametrize(
    ("options", "message"), [(("--concurrency", 0), "--concurrency"), (("--rounds", 0), "--rounds")]
)
def test_what_cannot_be_is_refused(twophase, options, message):  # noqa: F811
    exit_code, out, err = twophase("bench", "http", *options)
    assert (exit_code, out) == (2, "")
    assert message in err
