"""What each contender needs to run a workload as the others do."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.memory import kv_bytes_per_token
from twophase.model.config import load_config
from twophase_tools.bench.peers import gguf_weights, packed_weights
from twophase_tools.bench.peers.process import Launch, NotRunError

OURS, BATCH, ONE_BY_ONE = "twophase", "transformers, one batch", "transformers, one by one"
VLLM, LLAMA_CPP = "vLLM", "llama.cpp"
GGUF_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
PACKED_BITS = {"W8A8": 8, "W4A16": 4}
BLOCK_SIZE, VLLM_BLOCK_SIZE = 16, 128  # vLLM's is its own choice on a CPU


@dataclass(frozen=True, slots=True)
class Setup:
    """What a contender is to run with.

    Attributes:
        device, dtype: Resolved names, 'cpu' and 'float32', never 'auto'.
        backend: Of this engine's attention.
        quantization: Of the linear layers, in the contender's own words; None: the weights are plain.
        pythons: Other people's engine -> interpreter of the environment that has it.
        workshop: A folder for files in other formats.
    """

    folder: str
    device: str
    dtype: str
    backend: str
    num_threads: int
    pythons: dict[str, str]
    workshop: Path
    quantization: str | None = None


def launch_of(who: str, setup: Setup, lengths: list[int]) -> Launch:
    """How to start a contender for sequences of these lengths, all of which it holds to their ends at once.

    Raises:
        NotRunError: It has no interpreter here, cannot have these weights, or runs on another device.
    """
    if who in (OURS, BATCH, ONE_BY_ONE):
        return _own_launch(who, setup, lengths)
    if who not in setup.pythons:
        option = f"--{who.lower().replace('.', '-')}-python"
        raise NotRunError(f"give {option}, an interpreter that has it")
    if setup.device != "cpu":
        raise NotRunError(f"is compared on a CPU, not on {setup.device}")
    return _vllm_launch(setup, lengths) if who == VLLM else _llama_cpp_launch(setup, lengths)


def _blocks(lengths: list[int], block_size: int) -> int:
    """So many that nothing is preempted."""
    return sum(-(-length // block_size) for length in lengths)


def _own_launch(who: str, setup: Setup, lengths: list[int]) -> Launch:
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
    }
    options |= {} if setup.quantization is None else {"quantization": setup.quantization}
    return Launch(sys.executable, "with_twophase", settings | {"options": options})


def _vllm_launch(setup: Setup, lengths: list[int]) -> Launch:
    folder = Path(setup.folder)
    config = load_config(folder)
    if setup.quantization is not None:
        packed = setup.workshop / setup.quantization
        folder = packed if packed.exists() else packed_weights.write(folder, packed, PACKED_BITS[setup.quantization])
    value_bytes = 4 if setup.dtype == "float32" else 2
    token_bytes = kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, value_bytes, 0)
    num_blocks = _blocks(lengths, VLLM_BLOCK_SIZE) + 1  # it keeps one for itself
    settings = {
        "model": str(folder),
        "dtype": setup.dtype,
        "num_requests": len(lengths),
        "longest": max(lengths),
        "block_size": VLLM_BLOCK_SIZE,
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
    python = setup.pythons[VLLM]
    intel_openmp = Path(python).parent.parent / "lib" / "libiomp5.so"  # a package that comes with it
    if "LD_PRELOAD" not in os.environ and intel_openmp.is_file():
        environment["LD_PRELOAD"] = str(intel_openmp)
    return Launch(python, "with_vllm", settings, environment)


def _llama_cpp_launch(setup: Setup, lengths: list[int]) -> Launch:
    kind = setup.quantization or GGUF_TYPES[setup.dtype]
    settings = {
        "model": str(gguf_weights.find(setup.folder, kind, setup.workshop)),
        "num_requests": len(lengths),
        "longest": max(lengths),
        "num_threads": setup.num_threads,
        "kv_type": "F32" if setup.dtype == "float32" else "F16",  # it has no bf16 attention of its own on a CPU
    }
    return Launch(setup.pythons[LLAMA_CPP], "with_llama_cpp", settings)
