"""Notebooks of the first edition still grade: their imports are read as those of today."""

import importlib

import pytest

from twophase_labs.machine.grading.first_edition import with_names_of_today
from twophase_labs.machine.grading.locate import code_cells

TODAY = {
    "from twophase.workbook import ____, check, use": "from twophase_labs import ____, check, use",
    "from twophase.workbook.kit.models import load": "from twophase_labs.kit.models import load",
    "from twophase.workbook.lab03 import decode_pictures": "from twophase_labs.decode import decode_pictures",
    "from twophase.workbook.pictures import figure": "from twophase_labs.machine.pictures import figure",
    "import twophase.serving.slo": "import twophase_tools.load.slo",
    "from twophase.distributed.launch import run_local": "from twophase.parallel.launch import run_local",
    "from twophase.engine.thrift import Thrift": "from twophase.engine.speculation_gate import SpeculationGate as Thrift",
    "limit = step.num_free_seats - 1": "limit = step.num_free_places - 1",
    "from twophase import LLM\nimport twophase.engine.drafters": "from twophase import LLM\nimport twophase.engine.drafters",
    "mytwophase.bench = twophase.benchmark": "mytwophase.bench = twophase.benchmark",
}


@pytest.mark.parametrize("before", TODAY)
def test_modules_are_called_what_they_are_now(before):
    assert with_names_of_today(before) == TODAY[before]


@pytest.mark.parametrize(
    "module", ["twophase.workbook.kit.models", "twophase.simulate.cost_model", "twophase.cli.doctor"]
)
def test_they_are_there(module):
    importlib.import_module(with_names_of_today(module))


def test_a_notebook_is_read_so():
    source = "import twophase.serving.slo"
    notebook = {"cells": [{"cell_type": "code", "source": source, "metadata": {}}]}
    assert code_cells(notebook)[0].source == TODAY[source]
