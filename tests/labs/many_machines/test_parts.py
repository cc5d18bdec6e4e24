"""What lab 7's notebook is made of: cells that travel to other processes, a pipeline's bubble, ranks in step, a cost by kernels."""

import importlib.util

import pytest

from twophase_labs.machine.judge import run_cell
from twophase_labs.many_machines import fleets, lockstep, stages
from twophase_labs.many_machines.own_source import cell_of, write_module
from twophase_tools.simulate.step_load import StepLoad

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


def test_a_rank_without_requests_takes_part_in_every_step():
    steps = lockstep.steps_together((2, 4, 1), num_ranks=2)
    assert steps == [[2, 1], [1, 1], [0, 1], [0, 1]]
    assert lockstep.line(steps) == "4 steps of 2 ranks: 7 tokens; 2 of 8 batches are dummies (25%)"
