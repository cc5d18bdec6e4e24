"""The stride experiment: one pass over a large array that takes every s-th number."""

from collections.abc import Sequence
from functools import partial

import torch

from twophase_labs.kit.timing import seconds

NUM_NUMBERS = 2**26  # 256 MiB in float32, more than any cache holds
STRIDES = (1, 2, 4, 8, 16, 32, 64, 128)
CPU_LINE_BYTES, GPU_SECTOR_BYTES = 64, 32


def time_strides(
    strides: Sequence[int], device: torch.device | str = "cpu", repeats: int = 3, num_numbers: int = NUM_NUMBERS
) -> dict[int, float]:
    """Seconds to sum every s-th number of the array, the best of `repeats`, by stride. One thread on a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        numbers = torch.ones(num_numbers, device=device)
        # Round after round, so that a busy moment of the machine falls on all strides alike.
        rounds = [{s: seconds(partial(_sum, numbers, s)) for s in strides} for _ in range(repeats + 1)]
        return {stride: min(elapsed_s[stride] for elapsed_s in rounds) for stride in strides}
    finally:
        torch.set_num_threads(threads)


def _sum(numbers: torch.Tensor, stride: int) -> float:
    return float(numbers[::stride].sum())  # fetching the number waits for the device


def percent_of_a_full_pass(stride: int) -> float:
    """The time of a pass with this stride on this machine's CPU, in percent of one that reads everything."""
    elapsed_s = time_strides((1, stride), repeats=8)
    return 100 * elapsed_s[stride] / elapsed_s[1]
