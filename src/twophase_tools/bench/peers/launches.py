"""How each engine is started to run a workload as the others do."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from twophase.memory import kv_bytes_per_token
from twophase.model.config import load_config
from twophase_tools.bench.peers.process import Launch, PeerError

OURS, BATCH, ONE_BY_ONE, VLLM = "twophase", "transformers, one batch", "transformers, one by one", "vLLM"
# Of both engines: vLLM's choice on a CPU when all requests are there at once. Ours, 512, is made for those who wait.
STEP_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine is to run with.

    Attributes:
        device, dtype: Resolved names, 'cpu' and 'float32', never 'auto'.
        backend: Of this engine's attention.
        vllm_python: Interpreter of the environment that has vLLM.
        quantization: What this engine's linear layers are rounded to; None: the weights are plain.
    """

    folder: str
    device: str
    dtype: str
    backend: str
    num_threads: int
    vllm_python: str | None
    quantization: str | None = None


def launch_of(who: str, setup: Setup, lengths: list[int]) -> Launch:
    """How to start an engine for sequences of these lengths, all of which it holds to their ends at once. All get the
    same settings; what these mean for an engine is for its adapter to know.

    Raises:
        PeerError: It has no interpreter here, or runs on another device.
    """
    config = load_config(Path(setup.folder))
    value_bytes = 4 if setup.dtype == "float32" else 2
    token_bytes = kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, value_bytes, 0)
    how = {"lengths": lengths, "kv_token_bytes": token_bytes, "step_tokens": STEP_TOKENS, "is_batch": who == BATCH}
    settings = asdict(setup) | how
    if who != VLLM:
        return Launch(sys.executable, "with_twophase" if who == OURS else "with_transformers", settings)
    if setup.vllm_python is None:
        raise PeerError("not run: give --vllm-python, an interpreter that has it")
    if setup.device != "cpu":
        raise PeerError(f"not run: is compared on a CPU, not on {setup.device}")
    return Launch(setup.vllm_python, "with_vllm", settings, _vllm_environment(setup, setup.vllm_python))


def _vllm_environment(setup: Setup, python: str) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))[: setup.num_threads] if hasattr(os, "sched_getaffinity") else []
    environment = {
        # One process: with workers beside it they would spin as they wait, on the cores that the others measure with.
        # What vLLM's OpenMP variables say of workers is then up to us; these are the values that it gives to them.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(setup.num_threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]" if cores else "",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    intel_openmp = Path(python).parent.parent / "lib" / "libiomp5.so"  # a package that comes with it
    if "LD_PRELOAD" not in os.environ and intel_openmp.is_file():
        environment["LD_PRELOAD"] = str(intel_openmp)
    return environment
