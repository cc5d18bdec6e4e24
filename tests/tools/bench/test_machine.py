"""The record that goes with every result, and the roofs."""

import json
import os
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from twophase_tools.bench import machine

CPU = torch.device("cpu")


def test_the_record_is_json_and_says_what_is_here():
    found = json.loads(json.dumps(machine.describe_machine()))
    assert found["versions"]["torch"] == metadata.version("torch")
    assert 1 <= found["num_cores"] <= os.cpu_count()
    assert found["num_threads"] == torch.get_num_threads()
    assert found["free_memory_bytes"] > 0
    assert bool(found["gpus"]) == torch.cuda.is_available()
    assert metadata.version("torch") in machine.machine_text(found)


def test_roofs_count_bytes_and_operations(monkeypatch):
    monkeypatch.setattr(machine, "median_time_s", lambda function, device, repeats: 0.5)
    # A copy reads and writes; a product multiplies and adds.
    assert machine.measure_copy_bandwidth(CPU, num_bytes=1000) == 4000
    assert machine.measure_matmul_rate(CPU, torch.float32, size=10) == 4000


def test_the_median_ignores_warm_up_and_outliers(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])  # start and end of three calls
    calls = []
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert machine.median_time_s(lambda: calls.append(1), CPU, repeats=3) == 2.0
    assert len(calls) == 5


@pytest.mark.gpu
def test_cuda_roofs_are_plausible():
    device = torch.device("cuda")
    assert 5e10 < machine.measure_copy_bandwidth(device) < 1e14
    assert 1e11 < machine.measure_matmul_rate(device, torch.float16) < 1e16
