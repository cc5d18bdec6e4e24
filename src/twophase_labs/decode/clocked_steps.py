"""How long this machine's engine takes for one decode step of SmolLM2, at any batch and context."""

import math
import time
from collections.abc import Sequence
from functools import cache

from twophase import LLM
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import ModelRunner
from twophase_labs.decode.decode_work import Machine
from twophase_labs.kit.ceilings import copy_bandwidth, matmul_rate
from twophase_labs.machine.kernels import device

BLOCK_SIZE = 16
NUM_BLOCKS = 320
MAX_MODEL_LEN = 8_192
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 500, 1_000, 2_000, 3_000, 4_000)
BATCH_CONTEXT = 64  # of every sequence, while the batch is varied


@cache
def clocked_engine() -> LLM:
    """SmolLM2 in float32 with the torch backend, opened once."""
    return LLM(
        device=device.type, dtype="float32", attention_backend="torch", block_size=BLOCK_SIZE,
        num_kv_blocks=NUM_BLOCKS, max_num_seqs=max(BATCHES), max_model_len=MAX_MODEL_LEN,
    )  # fmt: skip


def clock_steps(steps: Sequence[tuple[int, int]], rounds: int = 4) -> list[float]:
    """Seconds of a decode step for each (sequences, context): every sequence computes one token more.

    Nothing is read first: each sequence is given pages of its own, and what they hold does not matter to a clock. All
    steps take turns, and the best time of each counts: other programs only ever add to it.

    Raises:
        ValueError: The pool has not enough pages.
    """
    llm = clocked_engine()
    runner = ModelRunner(llm.model, llm.kv_cache, MAX_MODEL_LEN)
    plans = [_chunks(num_sequences, context) for num_sequences, context in steps]
    best_s = [math.inf] * len(plans)
    for _ in range(rounds):
        for at, chunks in enumerate(plans):
            start_s = time.perf_counter()
            logits = runner.run(chunks)
            assert logits is not None
            logits.argmax(-1).tolist()  # waits for a GPU, too
            best_s[at] = min(best_s[at], time.perf_counter() - start_s)
    return best_s


def _chunks(num_sequences: int, context: int) -> list[ScheduledChunk]:
    width = -(-(context + 1) // BLOCK_SIZE)
    if num_sequences * width > NUM_BLOCKS:
        raise ValueError(
            f"{num_sequences} sequences of {width} blocks need more than the {NUM_BLOCKS} blocks there are"
        )
    return [
        ScheduledChunk(i, token_ids=(1,), start=context, block_ids=range(i * width, (i + 1) * width), num_samples=1)
        for i in range(num_sequences)
    ]


def times_by_batch() -> dict[int, float]:
    """Seconds of a step for each of `BATCHES`."""
    return dict(zip(BATCHES, clock_steps([(batch, BATCH_CONTEXT) for batch in BATCHES]), strict=True))


def times_by_context() -> dict[int, float]:
    """Seconds of a step of one sequence for each of `CONTEXTS`."""
    return dict(zip(CONTEXTS, clock_steps([(1, context) for context in CONTEXTS]), strict=True))


def this_machine() -> Machine:
    """Its ceilings in float32."""
    return Machine("this machine", bandwidth=copy_bandwidth(device), flop_rate=matmul_rate(device))
