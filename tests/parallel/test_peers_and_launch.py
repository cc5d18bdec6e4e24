"""Lost and silent peers are errors in time; launches tell what happened and leave no process behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.engine.engines import with_backend
from tests.engine.faults import Broken, FaultyBackend
from tests.model.tiny import load_model, make_folder
from tests.parallel.processes import is_running
from tests.parallel.together import BLOCK_SIZE
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.errors import ConfigError
from twophase.core.plan import ScheduledChunk
from twophase.engine.model_run import isolate
from twophase.engine.runner import ModelRunner
from twophase_features.parallel.peers import PeerLostError, Peers
from twophase_features.parallel.sharding import Shard
from twophase_features.parallel.tensor_parallel import DriverRunner
from twophase_tools.launch import LaunchError, run_local

SCRIPT = Path(__file__).with_name("scripts.py")


@pytest.mark.full
def test_waiting_for_work_has_no_limit_and_survivors_notice_a_loss():
    ranks = run_local(SCRIPT, 3, ["idle_then_lose_one"], 90, check=False)
    assert [each.exit_code for each in ranks] == [4, 4, -9]
    for rank, each in enumerate(ranks):
        message = [0, 0, 0] if rank == 0 else [7, 8, rank]
        passed_on = [10.0 if rank == 0 else float(rank)] * 2
        lines = each.stdout.splitlines()
        assert lines[0] == f"{message} [14.0, 16.0, 3.0] {passed_on} 12"
        assert lines[1:] == ([] if rank == 2 else ["True True"] * 2)


def test_a_worker_without_work_notices_that_its_driver_is_dead():
    ranks = run_local(SCRIPT, 2, ["driver_dies"], 60, check=False)
    assert [each.exit_code for each in ranks] == [-9, 6]
    assert ranks[1].stdout == "(0,)\n"


def test_the_error_of_a_launch_names_the_rank_and_what_it_said():
    with pytest.raises(
        LaunchError, match=r"(?s)rank 1 failed with exit code 1\..*rank 1 said.*ValueError: planted"
    ) as caught:
        run_local(SCRIPT, 2, ["fail", "a b"], 60, threads_per_rank=3)
    assert "rank 0 has 3 threads and arguments ['a b']" in str(caught.value)


def pids_in(folder: Path, count: int) -> list[int]:
    """Process ids that ranks have written there, once there are so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [path.read_text() for path in folder.glob("*.pid")]
        if len(found) == count and all(found):
            return [int(pid) for pid in found]
        time.sleep(0.05)
    raise AssertionError(f"only {found} have started")


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.full
def test_a_launch_that_takes_too_long_is_ended_deaf_and_stopped_ranks_too(tmp_path):
    with pytest.raises(LaunchError, match=r"(?s)did not end within 12 s\..*rank 0 said last:\nasleep"):
        run_local(SCRIPT, 2, ["sleep_for_ever", str(tmp_path)], 12)
    assert not [pid for pid in pids_in(tmp_path, 2) if is_running(pid)]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_no_rank_outlives_its_caller(how, tmp_path):
    """As when a notebook's kernel dies."""
    code = f"""
import sys; from twophase_tools.launch import LaunchError, run_local
run_local({str(SCRIPT)!r}, 2, ["sleep_for_ever", {str(tmp_path)!r}], 120)"""
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        pids = pids_in(tmp_path, 2)
        caller.send_signal(how)
        caller.wait(20)
        wait_until_gone(pids)
    finally:
        caller.kill()


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("nowhere.py", {}, "no script 'nowhere.py'"),
        ("x", {"world_size": 0}, "must be positive, got 0"),
        ("x", {"timeout_s": 0}, "must be positive, got 2, 0"),
        ("x", {"threads_per_rank": 0}, "must be positive"),
    ],
)
def test_launches_that_make_no_sense_are_refused(target, changes, said):
    with pytest.raises(ConfigError, match=said):
        run_local(target, **({"world_size": 2} | changes))


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of the only rank of a torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


def test_a_rank_that_does_not_come(torchrun):
    torchrun.setenv("WORLD_SIZE", "3")
    with pytest.raises(PeerLostError, match=r"all ranks to start \(limit for a silent peer: 0.5 s\)") as caught:
        Peers("cpu", startup_timeout_s=0.5)
    assert caught.value.ranks == (1, 2)


def test_joining_needs_torchrun_and_a_limit(torchrun):
    with pytest.raises(ConfigError, match="step_timeout_s must be a positive number of seconds, got 0"):
        Peers("cpu", step_timeout_s=0)
    torchrun.delenv("RANK")
    with pytest.raises(ConfigError, match="not started by torchrun: RANK is not set"):
        Peers("cpu")


def test_a_port_that_something_else_listens_on(torchrun):
    with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
        torchrun.setenv("WORLD_SIZE", "2")
        with pytest.raises(PeerLostError, match=r"listen|address"):
            Peers("cpu", startup_timeout_s=0.5)


def test_a_failure_in_the_middle_of_the_model_ends_the_group(torchrun, tmp_path):
    """The other ranks would add up sums of other layers, so rank 0 may not try again in smaller company."""
    folder, _ = make_folder("llama", tmp_path)
    device = torch.device("cpu")
    model = load_model(folder, device=device)
    broken = with_backend(model, FaultyBackend(model.backend, "attend", lambda batch: True))
    spec = KVCacheSpec(2, 2, 8, BLOCK_SIZE, torch.float32)
    handler = signal.getsignal(signal.SIGTERM)
    with Peers("cpu") as peers:
        runner = DriverRunner(ModelRunner(broken, KVCache(spec, 8, device), 32), peers, Shard(model.config, 0, 1))
        chunks = [ScheduledChunk(i, [5, 6], 0, [i], 1) for i in range(4)]
        with pytest.raises(Broken):
            runner.run(chunks)
        results = isolate(runner.run, chunks)
    assert broken.backend.num_raised == 1
    assert all(isinstance(each, PeerLostError) for each in results)
    assert "rank 0 failed in the middle of a step (Broken: planted in attend)" in str(results[0])
    assert signal.signal(signal.SIGTERM, handler) == signal.SIG_IGN  # the process is about to say what happened
