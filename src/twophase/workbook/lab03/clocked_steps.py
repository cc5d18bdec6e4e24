"""How long this machine's engine takes for one decode step of SmolLM2, at any batch and context."""

import statistics
import time
from functools import cache

import torch

from twophase import LLM
from twophase.bench.machine import measure_copy_bandwidth, measure_matmul_rate
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import ModelRunner
from twophase.workbook.kernels import device
from twophase.workbook.lab03.decode_work import Machine

BLOCK_SIZE = 16
NUM_BLOCKS = 320
MAX_MODEL_LEN = 8_192
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 500, 1_000, 2_000, 3_000, 4_000)
BATCH_CONTEXT = 64  # of every sequence, while the batch is varied
SMALL, LARGE = 1, 16  # the batches of the prediction


@cache
def clocked_engine() -> LLM:
    """SmolLM2 in float32 with the torch backend, opened once."""
    return LLM(
        device=device.type, dtype="float32", attention_backend="torch", block_size=BLOCK_SIZE,
        num_kv_blocks=NUM_BLOCKS, max_num_seqs=max(BATCHES), max_model_len=MAX_MODEL_LEN,
    )  # fmt: skip


def decode_step_s(num_sequences: int, context: int, repeats: int = 5) -> float:
    """Median seconds of a step in which each sequence, `context` tokens long, computes one more.

    Nothing is read first: each sequence is given pages of its own, and what they hold does not matter to a clock.

    Raises:
        ValueError: The pool has not enough pages.
    """
    width = -(-(context + 1) // BLOCK_SIZE)
    if num_sequences * width > NUM_BLOCKS:
        raise ValueError(f"{num_sequences} sequences of {width} pages need more than the {NUM_BLOCKS} pages there are")
    chunks = [
        ScheduledChunk(i, token_ids=(1,), start=context, block_ids=range(i * width, (i + 1) * width), num_samples=1)
        for i in range(num_sequences)
    ]
    llm = clocked_engine()
    runner = ModelRunner(llm.model, llm.kv_cache, MAX_MODEL_LEN)
    times_s = []
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        logits = runner.run(chunks)
        assert logits is not None
        logits.argmax(-1).tolist()  # waits for a GPU, too
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])  # the first prepares things


@cache
def this_machine() -> Machine:
    """Its measured ceilings in float32."""
    return Machine(
        "this machine",
        bandwidth=measure_copy_bandwidth(device, 2**28, repeats=5),
        flop_rate=measure_matmul_rate(device, torch.float32, 1024 if device.type == "cpu" else 4096, repeats=5),
    )


def batching_gain() -> float:
    """Tokens per second at the larger batch over those at the smaller one."""
    small_s, large_s = (decode_step_s(batch, BATCH_CONTEXT) for batch in (SMALL, LARGE))
    return LARGE / large_s / (SMALL / small_s)
