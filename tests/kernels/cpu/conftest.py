"""Kernels are compiled as production compiles them in the full run, else with less optimisation, which is faster."""

import pytest

from tests.kernels.cpu.harness import Headers


@pytest.fixture(autouse=True, scope="session")
def optimisation(request):
    Headers.level = "-O3" if request.config.getoption("--full") else "-O1"
