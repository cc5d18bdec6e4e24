"""This layer stands above plain data only: no tensors, no engine."""

import subprocess
import sys


def test_serving_imports_no_tensors():
    code = (
        "import sys; import twophase_tools.load.report, twophase_tools.load.lanes;"
        "heavy = {'torch', 'numpy', 'matplotlib', 'twophase.engine', 'twophase.scheduling'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures_import_no_tensors():
    code = "import sys; import twophase_tools.load.pictures; assert not {'torch', 'twophase.engine'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
