"""What all tests of the kernels share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory(request):
    """While a mutant is looked at, memory that was never written holds NaN.

    A check runs the right kernel first. A mutant that leaves a result unwritten might find that kernel's in the memory
    it is given, and survive by that accident.
    """
    if request.node.get_closest_marker("mutants") is None or torch.cuda.is_available():
        yield
        return
    # torch fills what it allocates only while it is deterministic.
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
