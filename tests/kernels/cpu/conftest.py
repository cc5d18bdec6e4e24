"""What tests of compiled kernels share: a process that compiles, and how well."""

import pytest

from tests.kernels.cpu.harness import Headers


@pytest.fixture(autouse=True, scope="session")
def optimisation(request):
    """As production compiles in the full run, else less, which is faster."""
    Headers.level = "-O3" if request.config.getoption("--full") else "-O1"
