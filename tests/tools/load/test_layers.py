"""This layer stands above plain data only: no tensors, no engine."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("report lanes", "torch matplotlib twophase.engine twophase.scheduling"),
        ("pictures", "torch twophase.engine"),
    ],
)
def test_serving_imports_no_tensors(modules, heavy):
    imports = "".join(f"import twophase_tools.load.{module}; " for module in modules.split())
    code = f"import sys; {imports}found = {set(heavy.split())} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
