"""What lab 7's notebook is made of: cells that travel to other processes, a pipeline's bubble, fleets that lose nothing."""

import importlib.util

import pytest

from twophase_labs.machine.judge import run_cell
from twophase_labs.many_machines import fleets, stages
from twophase_labs.many_machines.own_source import cell_of, write_module
from twophase_tools.simulate.autoscale import FleetState

CELL = """
def helper(x):
    return 2 * x


def doubled(x):
    return helper(x) + torch.zeros(1).item()


class Doubler:
    def run(self, x):
        return helper(x)
"""


def cell():
    namespace: dict = {}
    run_cell("import torch" + CELL, namespace, "<a cell of this test>")
    return namespace


def test_a_cell_travels_with_its_helpers_and_once(tmp_path):
    namespace = cell()
    write_module(tmp_path / "own.py", (namespace["doubled"], namespace["Doubler"]))
    assert (tmp_path / "own.py").read_text().count("def helper") == 1
    spec = importlib.util.spec_from_file_location("own", tmp_path / "own.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.doubled(3), module.Doubler().run(4)) == (6, 8)


def test_a_definition_without_a_cell_is_refused():
    namespace: dict = {}
    exec(CELL, namespace)
    with pytest.raises(ValueError, match="define it in a cell"):
        cell_of(namespace["doubled"])


def test_equal_chunks_idle_as_gpipe_says():
    spans = stages.run_pipeline([[1.0] * 5] * 3)
    assert spans == [[(float(s + c), float(s + c + 1)) for c in range(5)] for s in range(3)]
    assert stages.bubble_share(spans) == pytest.approx(2 / 7)


def test_a_chunk_waits_for_its_stage_and_for_the_stage_before():
    assert stages.run_pipeline([[2.0, 1.0], [1.0, 4.0]]) == [[(0.0, 2.0), (2.0, 3.0)], [(2.0, 3.0), (3.0, 7.0)]]
    assert stages.run_pipeline([[1.0, 1.0], [3.0, 1.0]])[1] == [(1.0, 4.0), (4.0, 5.0)]


@pytest.mark.parametrize(("num_outstanding", "wanted"), [(15, 3), (12, 3), (10, 2), (9, 2), (8, 2), (4, 1), (0, 0)])
def test_engines_are_wanted_in_proportion_to_the_load(num_outstanding, wanted):
    state = FleetState(0.0, 1, 1, 0, num_outstanding, 0, 0, 0.0, 0.0)
    assert fleets.PerEngine(target=5).num_wanted(state) == wanted


def test_a_burst_is_one_stream_of_distinct_requests_in_order():
    requests = fleets.Burst(parts=((5.0, 4.0), (5.0, 8.0))).requests
    times = [request.arrival_s for request in requests]
    assert times == sorted(times)
    assert len({request.request_id for request in requests}) == len(requests)
    assert 5.0 < times[-1] < 10.0
