"""Two real processes: what is left when one of the two goes."""

import json
from pathlib import Path

import pytest

from twophase_tools.launch import run_local

SCRIPT = Path(__file__).with_name("disaggregated_script.py")
LIMIT_S = 10.0


def run(*args, **options):
    """Each rank's lines, decoded."""
    results = run_local(SCRIPT, 2, [str(arg) for arg in args], threads_per_rank=1, **options)
    lines = [[json.loads(line) for line in each.stdout.splitlines() if line.startswith("{")] for each in results]
    return results, lines


@pytest.mark.parametrize("number", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.full)])
class TestLoss:
    def test_of_the_prefill_side(self, folder, number):
        """What has its pages goes on, what waits for them is computed by the survivor, with an engine's tokens; nothing
        stays behind."""
        results, (front, worker) = run(folder, 1, number, timeout_s=60, check=False)
        (end,) = front
        assert (end["ends"], end["in_use"]) == (["length", "length"], 0)
        assert (end["num_recomputed"], end["is_equal"]) == (1, True)
        assert end["refusal"].startswith("rank 1 was lost")
        assert end["time"] - worker[0]["time"] < LIMIT_S
        assert results[1].exit_code in (-9, None)  # killed, or ended by the launcher

    def test_of_the_decode_side(self, folder, number):
        results, (front, worker) = run(folder, 0, number, timeout_s=60, check=False)
        (end,) = worker
        assert end["error"].startswith("PeerLostError: rank 0 was lost")
        assert (end["in_use"], end["num_unsent"]) == (0, 0)
        assert end["time"] - front[0]["time"] < LIMIT_S
        assert results[1].exit_code == 1  # the error went all the way up
