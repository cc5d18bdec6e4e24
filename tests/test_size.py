"""The engine stays small enough to be read: its lines, its files, what importing it loads, what one request runs.

Each ceiling is today's value. More than that fails, and so does far less, so that a ceiling only falls.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tokenizers_for_tests import make_text_folder

ROOT = Path(__file__).parents[1]
SLACK = 0.05

CEILINGS = {
    "lines of src/twophase": 6_000,  # goal 6,000
    "files of src/twophase": 42,  # goal 45; a package's `__init__`, a docstring of what it has, is not counted
    "lines of the longest file": 312,  # goal 350
    "modules that `import twophase` loads": 7,  # goal 30
    "modules that `from twophase import LLM` loads": 47,
    "modules of features that a greedy request loads": 0,  # goal 0
    "files that a greedy request runs": 25,  # goal 25
}

CHILD = """
import json, sys
import twophase
package = [name for name in sys.modules if name.partition(".")[0] == "twophase"]
from twophase import LLM
engine = [name for name in sys.modules if name.partition(".")[0] == "twophase"]

from twophase import SamplingParams
llm = LLM(sys.argv[1], device="cpu")
files = set()
sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename) if event == "call" else None)
outputs = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
sys.setprofile(None)
assert len(outputs[0].outputs[0].token_ids) == 8
features = [name for name in sys.modules if name.partition(".")[0] == "twophase_features"]
print(json.dumps([package, engine, features, sorted(files)]))
"""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The measured value of each ceiling, and the names behind it."""
    folder, _ = make_text_folder(tmp_path_factory.mktemp("tiny"))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 2048}')
    # A process of its own: here other modules are loaded already, and types are checked at every call.
    ours = [str(ROOT / "src"), str(ROOT / "kernels")]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(ours)},
        capture_output=True,
        text=True,
        check=True,
    )
    package, engine, features, run = json.loads(child.stdout.splitlines()[-1])
    crossed = [str(Path(name).relative_to(ROOT)) for name in run if name.startswith(tuple(ours))]
    paths = (ROOT / "src/twophase").rglob("*.py")
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    longest_first = sorted(lines, key=lambda name: -lines[name])
    files = [name for name in longest_first if not name.endswith("/__init__.py") or name == "src/twophase/__init__.py"]
    return {
        "lines of src/twophase": (sum(lines.values()), longest_first),
        "files of src/twophase": (len(files), files),
        "lines of the longest file": (lines[longest_first[0]], longest_first[:5]),
        "modules that `import twophase` loads": (len(package), package),
        "modules that `from twophase import LLM` loads": (len(engine), engine),
        "modules of features that a greedy request loads": (len(features), features),
        "files that a greedy request runs": (len(crossed), crossed),
    }


@pytest.mark.parametrize("what", CEILINGS)
def test_size_is_at_its_ceiling(what, sizes):
    measured, names = sizes[what]
    ceiling = CEILINGS[what]
    assert measured <= ceiling, f"{what}: {measured}, more than the {ceiling} there were: {names}"
    assert measured >= ceiling * (1 - SLACK), f"{what}: {measured}; lower the ceiling from {ceiling}"


def test_what_is_measured_is_there(sizes):
    """A wrong path would measure nothing, and nothing is below every ceiling."""
    assert "src/twophase/engine/engine.py" in sizes["files of src/twophase"][1]
    assert "twophase.engine.engine" in sizes["modules that `from twophase import LLM` loads"][1]
    assert "src/twophase/engine/sampler.py" in sizes["files that a greedy request runs"][1]
