"""Peak memory of one contender, in a process of its own: `python -m twophase_tools.bench.memory JSON`.

In one process the contenders would share an allocator and its peak. On CUDA the peak is what torch allocated; on a CPU
it is the process's resident memory beyond what it had once everything was imported.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import torch

from twophase.core.errors import TwophaseError
from twophase_tools.bench.contenders import CONTENDERS, Setup
from twophase_tools.bench.peers.child import resident_bytes
from twophase_tools.bench.workload import engine_workloads


class MeasurementError(TwophaseError):
    """A measuring child process failed; carries what it said."""


def peak_memory_bytes(contender: str, setup: Setup, workload: str, vocab_size: int, quick: bool) -> int | None:
    """Run the workload once in a child process; None where the system does not tell.

    Raises:
        MeasurementError: The child failed.
    """
    task = {"contender": contender, "setup": asdict(setup), "workload": workload, "vocab_size": vocab_size}
    command = [sys.executable, "-m", "twophase_tools.bench.memory", json.dumps(task | {"quick": quick})]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode != 0:
        raise MeasurementError(f"measuring the memory of {contender!r} failed:\n{child.stderr.strip()[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1])


def _measure(task: dict) -> int | None:
    workload = engine_workloads(task["vocab_size"], task["quick"])[task["workload"]]
    setup = Setup(**task["setup"])
    # Imported now, so that code does not count as the contender's memory.
    import transformers  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import twophase.llm  # noqa: F401

    before = resident_bytes("VmRSS")
    CONTENDERS[task["contender"]](setup, workload).run(workload)
    if setup.device != "cpu":
        return torch.cuda.max_memory_allocated()
    # Not getrusage: its maximum is inherited from the process that started this one.
    peak = resident_bytes("VmHWM")
    return None if peak is None or before is None else peak - before


if __name__ == "__main__":
    print(json.dumps(_measure(json.loads(sys.argv[1]))))
