"""`pytest -p tests.kernels.cpu.plugin`: kernels of this session are compiled for the CPU, not interpreted.

bfloat16 is tested too, which the interpreter refuses. ONE_IN=n in the environment runs each n-th test only; CHECKED=1
verifies each access.
"""

import os

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton

import pytest
import torch

import triton_on_cpu

triton_on_cpu.install(checked=os.environ.get("CHECKED") == "1")


def pytest_configure(config):
    """Before tests are imported: what they take from `cases` is that of a machine with bfloat16."""
    from tests.kernels import cases

    cases.DTYPES = (torch.float32, torch.float16, torch.bfloat16)
    cases.DEVICES = [
        pytest.param(*device.values, id=device.id.replace("interpreter", "compiled"), marks=device.marks)
        for device in cases.DEVICES
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if not ("bfloat16" in item.name and "interpreter" in item.name)]
    items[:] = [item for item in kept if not item.get_closest_marker("skip")][:: int(os.environ.get("ONE_IN", "1"))]
