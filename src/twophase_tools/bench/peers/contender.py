"""The peers as contenders: what each needs to run a workload as the others do."""

import os
from dataclasses import dataclass
from pathlib import Path

from twophase.memory import kv_bytes_per_token
from twophase.model.config import load_config
from twophase_tools.bench.contenders import Contender, PeerRecord, Run, Setup
from twophase_tools.bench.peers import gguf_weights, packed_weights
from twophase_tools.bench.peers.process import Launch, NotRunError, PeerProcess
from twophase_tools.bench.workload import Workload

VLLM, LLAMA_CPP = "vLLM", "llama.cpp"
GGUF_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
PACKED_BITS = {"W8A8": 8, "W4A16": 4}
VLLM_BLOCK_SIZE = 128  # its own choice on a CPU


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the peers are, and where files can be written for them.

    Attributes:
        pythons: Peer -> interpreter of the environment that has it; whoever is missing does not run.
        limit_s: How long a peer may take to load a model, and for each run.
    """

    pythons: dict[str, str]
    workshop: Path
    limit_s: int | float


class PeerContender(Contender):
    """Another engine, in a process of its own that stays loaded between runs."""

    def __init__(self, name: str, launch: Launch) -> None:
        """Load the model.

        Raises:
            NotRunError: It is not installed.
            PeerFailedError: It cannot load the model.
        """
        self._name = name
        self._process = PeerProcess(launch)
        self._waiting_cpu_s = self._waited_s = 0.0

    def run(self, workload: Workload) -> Run:
        """As the peer timed it, from having read the task to having all tokens. Raises PeerFailedError."""
        answer = self._process.run(workload.prompts, workload.output_lens)
        self._waiting_cpu_s += answer["waiting_cpu_s"]
        self._waited_s += answer["waited_s"]
        tokens = tuple(tuple(of_one) for of_one in answer["token_ids"])
        return Run(answer["elapsed_s"], tuple(answer["ttft_s"]), tokens, answer["peak_memory_bytes"])

    def peer_record(self) -> PeerRecord:
        share = self._waiting_cpu_s / self._waited_s if self._waited_s else 0.0
        return PeerRecord(self._name, self._process.versions, share)

    def close(self) -> None:
        self._process.close()


def option_of(who: str) -> str:
    """The option of `bench engine` that names the peer's interpreter."""
    return f"--{who.lower().replace('.', '-')}-python"


def open_peer(who: str, setup: Setup, workload: Workload, peers: Peers) -> PeerContender:
    """The peer with its model loaded.

    Raises:
        NotRunError: It has no interpreter here, cannot have these weights, or runs on another device.
        PeerFailedError: It cannot load the model.
    """
    if who not in peers.pythons:
        raise NotRunError(f"give {option_of(who)}, an interpreter that has it")
    if setup.device != "cpu":
        raise NotRunError(f"is compared on a CPU, not on {setup.device}")
    return PeerContender(who, _LAUNCHES[who](setup, workload, peers))


def _launch_vllm(setup: Setup, workload: Workload, peers: Peers) -> Launch:
    folder = Path(setup.folder)
    config = load_config(folder)
    if setup.quantization is not None:
        packed = peers.workshop / setup.quantization
        folder = packed if packed.exists() else packed_weights.write(folder, packed, PACKED_BITS[setup.quantization])
    value_bytes = 4 if setup.dtype == "float32" else 2
    token_bytes = kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, value_bytes, 0)
    num_blocks = workload.num_blocks(VLLM_BLOCK_SIZE) + 1  # it keeps one for itself
    settings = {
        "model": str(folder),
        "dtype": setup.dtype,
        "num_requests": len(workload.prompts),
        "longest": _longest(workload),
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
    intel_openmp = Path(peers.pythons[VLLM]).parent.parent / "lib" / "libiomp5.so"  # a package that comes with it
    if "LD_PRELOAD" not in os.environ and intel_openmp.is_file():
        environment["LD_PRELOAD"] = str(intel_openmp)
    return Launch(peers.pythons[VLLM], "with_vllm", settings, environment, peers.limit_s)


def _launch_llama_cpp(setup: Setup, workload: Workload, peers: Peers) -> Launch:
    kind = setup.quantization or GGUF_TYPES[setup.dtype]
    settings = {
        "model": str(gguf_weights.find(setup.folder, kind, peers.workshop)),
        "num_requests": len(workload.prompts),
        "longest": _longest(workload),
        "num_threads": setup.num_threads,
        "kv_type": "F32" if setup.dtype == "float32" else "F16",  # it has no bf16 attention of its own on a CPU
    }
    return Launch(peers.pythons[LLAMA_CPP], "with_llama_cpp", settings, {}, peers.limit_s)


def _longest(workload: Workload) -> int:
    """Tokens of the longest sequence."""
    return max(len(prompt) + n for prompt, n in zip(workload.prompts, workload.output_lens, strict=True))


_LAUNCHES = {VLLM: _launch_vllm, LLAMA_CPP: _launch_llama_cpp}
