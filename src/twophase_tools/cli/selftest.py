"""A small attention problem with a known answer, for doctor: `python -m twophase_tools.cli.selftest BACKEND DEVICE`.

The answer is computed in NumPy float64 with loops, complex rotations and no pages, so that it shares no code with what
it checks. A process of its own is needed for Triton, whose first import fixes whether kernels are interpreted.
"""

import json
import math
import sys
from dataclasses import asdict, dataclass

import numpy as np
import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.errors import TwophaseError
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import pack
from twophase.model.machine import make_backend

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 64, 16
SCALE = 1 / math.sqrt(HEAD_DIM)

# (context already in pages, new tokens, blocks): a decode that crosses a block, a fresh prompt, a chunk that goes on.
SEQUENCES = ((18, 1, (5, 2)), (0, 5, (7,)), (9, 11, (1, 6)))
NUM_BLOCKS = 8

# Outputs are averages of values of about 1. float16 keeps 11 bits of each product and of the result; bfloat16 is not
# used, because Triton's interpreter cannot compute in it.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Outcome: the largest difference from the known answer."""

    max_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.max_error <= self.tolerance  # False for NaN


def run_self_test(backend_name: str, device: torch.device) -> SelfTest:
    """Write and attend a ragged batch of one decode and two prefill chunks.

    Raises:
        BackendUnavailableError: The backend cannot run here.
    """
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    spec = AttentionSpec(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, SCALE)
    backend = make_backend(backend_name, spec, device=device, dtype=dtype, block_size=BLOCK_SIZE)
    rng = np.random.default_rng(0)
    # Queries times 4: a peaky softmax, in which a missing key, scale or rotation shows.
    histories = [
        tuple(
            _rounded(rng, context + new, heads, dtype) * factor for heads, factor in ((NUM_HEADS, 4.0), (2, 1), (2, 1))
        )
        for context, new, _ in SEQUENCES
    ]
    found = _run_backend(backend, histories, device, dtype)
    expected = [
        _known_answer(*history)[context:] for history, (context, _, _) in zip(histories, SEQUENCES, strict=True)
    ]
    max_error = float(np.max(np.abs(found - np.concatenate(expected))))
    return SelfTest(max_error, TOLERANCE[dtype])


def _rounded(rng: np.random.Generator, num_tokens: int, num_heads: int, dtype: torch.dtype) -> np.ndarray:
    """Random [tokens, heads, D], exactly representable in `dtype`."""
    return torch.from_numpy(rng.standard_normal((num_tokens, num_heads, HEAD_DIM))).to(dtype).double().numpy()


def _run_backend(
    backend: AttentionBackend, histories: list[tuple[np.ndarray, ...]], device: torch.device, dtype: torch.dtype
) -> np.ndarray:
    """Two steps, as the engine would take them: the contexts into pages, then the batch that is checked."""
    cache = KVCache(KVCacheSpec(1, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, dtype), NUM_BLOCKS, device)
    angles = torch.from_numpy(_angles(32)).float().to(device)
    contexts = [(0, context) for context, _, _ in SEQUENCES]
    for ranges in (contexts, [(context, context + new) for context, new, _ in SEQUENCES]):
        rows = [(*each, s) for s, each in enumerate(ranges) if each[0] < each[1]]
        chunks = [ScheduledChunk(s, [0] * (end - start), start, SEQUENCES[s][2], 1) for start, end, s in rows]
        plan = backend.plan(pack(chunks, BLOCK_SIZE, device=device).view())
        flat = [np.concatenate([histories[s][i][start:end] for start, end, s in rows]) for i in range(3)]
        q, k, v = (torch.from_numpy(each).to(device, dtype) for each in flat)
        q = backend.write(q, k, v, angles.cos(), angles.sin(), cache.layers[0], plan)
        out = backend.attend(q, cache.layers[0], plan)
    return out.double().cpu().numpy()


def _angles(num_positions: int) -> np.ndarray:
    """[positions, D / 2]: position * 10000^(-2i/D) (RoPE, arXiv:2104.09864, section 3.2.2)."""
    frequencies = 10000.0 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    return np.arange(num_positions)[:, None] * frequencies


def _known_answer(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention over a whole history, [tokens, H, D], by a loop over the heads."""
    turn = np.exp(1j * _angles(len(q)))[:, None, :]
    half = HEAD_DIM // 2
    q_complex, k_complex = ((x[..., :half] + 1j * x[..., half:]) * turn for x in (q, k))
    out = np.zeros_like(q)
    for head in range(NUM_HEADS):
        kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
        # The real part of a * conj(b) is the dot product of the pairs.
        scores = (q_complex[:, head] @ k_complex[:, kv_head].conj().T).real * SCALE
        weights = np.tril(np.exp(scores - scores.max(1, keepdims=True)))
        out[:, head] = weights @ v[:, kv_head] / weights.sum(1, keepdims=True)
    return out


def main() -> int:
    """Print one line of JSON: the outcome, or the error that kept it from running."""
    backend_name, device = sys.argv[1:]
    try:
        outcome = asdict(run_self_test(backend_name, torch.device(device)))
    except TwophaseError as error:
        outcome = {"error": str(error)}
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
