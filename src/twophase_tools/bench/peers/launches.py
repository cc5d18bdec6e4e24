"""What each engine needs to run a workload as the others do."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.memory import kv_bytes_per_token
from twophase.model.config import load_config
from twophase_tools.bench.peers.process import Launch, PeerError

OURS, BATCH, ONE_BY_ONE, VLLM = "twophase", "transformers, one batch", "transformers, one by one", "vLLM"
BLOCK_SIZE, VLLM_BLOCK_SIZE = 16, 128  # vLLM's is its own choice on a CPU
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
    """How to start an engine for sequences of these lengths, all of which it holds to their ends at once.

    Raises:
        PeerError: It has no interpreter here, or runs on another device.
    """
    if who == VLLM:
        return _vllm_launch(setup, lengths)
    settings: dict[str, Any] = {"model": setup.folder, "num_threads": setup.num_threads}
    if who != OURS:
        settings |= {"dtype": setup.dtype, "device": setup.device, "is_batch": who == BATCH}
        return Launch(sys.executable, "with_transformers", settings)
    options = {
        "device": setup.device,
        "dtype": setup.dtype,
        "attention_backend": setup.backend,
        "block_size": BLOCK_SIZE,
        "num_kv_blocks": _blocks(lengths, BLOCK_SIZE),
        "max_num_batched_tokens": STEP_TOKENS,
        "quantization": setup.quantization,
    }
    return Launch(sys.executable, "with_twophase", settings | {"options": options})


def _blocks(lengths: list[int], block_size: int) -> int:
    """So many that nothing is preempted."""
    return sum(-(-length // block_size) for length in lengths)


def _vllm_launch(setup: Setup, lengths: list[int]) -> Launch:
    if setup.vllm_python is None:
        raise PeerError("not run: give --vllm-python, an interpreter that has it")
    if setup.device != "cpu":
        raise PeerError(f"not run: is compared on a CPU, not on {setup.device}")
    config = load_config(Path(setup.folder))
    value_bytes = 4 if setup.dtype == "float32" else 2
    token_bytes = kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, value_bytes, 0)
    num_blocks = _blocks(lengths, VLLM_BLOCK_SIZE) + 1  # it keeps one for itself
    settings = {
        "model": setup.folder,
        "dtype": setup.dtype,
        "num_requests": len(lengths),
        "longest": max(lengths),
        "block_size": VLLM_BLOCK_SIZE,
        "step_tokens": STEP_TOKENS,
        "kv_cache_bytes": num_blocks * VLLM_BLOCK_SIZE * token_bytes,
    }
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
    intel_openmp = Path(setup.vllm_python).parent.parent / "lib" / "libiomp5.so"  # a package that comes with it
    if "LD_PRELOAD" not in os.environ and intel_openmp.is_file():
        environment["LD_PRELOAD"] = str(intel_openmp)
    return Launch(setup.vllm_python, "with_vllm", settings, environment)
