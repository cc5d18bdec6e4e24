"""How often each program of a launch runs each loop of its code: from shapes and the case's lengths, as the kernels
reckon it themselves. Arrays are [programs, loops], programs in the order in which they start, loops as in the code."""

from itertools import accumulate
from math import ceil, log2, prod
from typing import Any

import numpy as np

from twophase_kernels._triton import cdiv
from twophase_tools.bench.time_model.launches import Launch

Chunks = tuple[tuple[int, int], ...]  # (tokens to compute, all tokens) per sequence
Trips = np.ndarray[Any, np.dtype[np.int64]]


def trips(launches: list[Launch], place: int, chunks: Chunks) -> Trips:
    """Of `launches[place]` of a case. Raises ValueError where the code has other loops than the kernel's source."""
    launch, first = launches[place], launches[0]
    if launch.kernel == "paged_decode_kernel":
        rows = _decode(launch, chunks)
    elif launch.kernel == "merge_splits_kernel":
        rows = _merge(launch, first, chunks)
    elif launch.kernel == "paged_prefill_kernel":
        rows = _prefill(launch, chunks)
    elif launch.kernel in ("quantized_linear_kernel", "fp8_linear_kernel"):
        rows = _linear(launch)
    else:
        rows = [()] * prod(launch.grid)
    found = np.array(rows, np.int64)
    if found.shape != (prod(launch.grid), len(launch.code.loops)):
        raise ValueError(
            f"{launch.kernel} has {len(launch.code.loops)} loops in machine code and {prod(launch.grid)} programs, but "
            f"trips were counted for {found.shape[1]} and {found.shape[0]}."
        )
    return found


def work_list(launch: Launch, chunks: Chunks) -> list[list[int]]:
    """Keys in each part of each sequence, where `paged_decode` splits by length."""
    lengths, block_n = [length for _, length in chunks], launch.arguments["BLOCK_N"]
    mean = max(cdiv(sum(lengths), len(lengths)), launch.arguments["CHUNK"])
    size = cdiv(mean, block_n) * block_n
    return [[min(size, length - start) for start in range(0, length, size)] for length in lengths]


def _decode(launch: Launch, chunks: Chunks) -> list[tuple[int, ...]]:
    heads, items, splits = launch.grid
    block_n = launch.arguments["BLOCK_N"]
    if launch.arguments["partial_ptr"] is None:  # so many splits of each sequence, in whole tiles
        tiles = [cdiv(length, block_n) for _, length in chunks]
        parts = [max(0, min(cdiv(n, splits), n - split * cdiv(n, splits))) for split in range(splits) for n in tiles]
        return [(part,) for part in parts for _ in range(heads)]
    found = [cdiv(keys, block_n) for parts in work_list(launch, chunks) for keys in parts]
    steps = cdiv(len(chunks), 128)  # of the two loops over lengths in which a program finds its part
    return [(steps, steps, part) for part in [*found, *[0] * (items - len(found))] for _ in range(heads)]


def _merge(launch: Launch, decode: Launch, chunks: Chunks) -> list[tuple[int, ...]]:
    splits = [launch.arguments["num_splits"]] * len(chunks)
    if decode.arguments["partial_ptr"] is not None:
        splits = [len(parts) if len(parts) > 1 else 0 for parts in work_list(decode, chunks)]
    steps = [cdiv(number, launch.arguments["BLOCK_S"]) for number in splits]
    return [(number, number) for number in steps for _ in range(launch.arguments["ROWS"])]


def _prefill(launch: Launch, chunks: Chunks) -> list[tuple[int, ...]]:
    """Loops: the search for the sequence, tiles that need no mask, tiles that do."""
    arguments, (num_blocks, heads, _) = launch.arguments, launch.grid
    block_q, block_n = arguments["BLOCK_M"] // (arguments["H"] // arguments["H_KV"]), arguments["BLOCK_N"]
    begins = [begin // block_q + s for s, begin in enumerate(accumulate((n for n, _ in chunks[:-1]), initial=0))]
    search = ceil(log2(len(chunks)))
    rows: list[tuple[int, ...]] = []
    for block in reversed(range(num_blocks)):
        sequence = max(s for s, begin in enumerate(begins) if begin <= block)
        num_tokens, length = chunks[sequence]
        first = (block - begins[sequence]) * block_q
        position = length - num_tokens + first
        whole = (position + 1) // block_n
        masked = cdiv(min(position + block_q, length), block_n) - whole
        rows.append((search, whole, masked) if first < num_tokens else (search, 0, 0))  # or it has no tokens
    return rows * heads


def _linear(launch: Launch) -> list[tuple[int, ...]]:
    """Outermost in the order of programs are the splits of the columns; the last may have fewer steps."""
    per_split = cdiv(steps := cdiv(launch.arguments["num_inputs"], launch.arguments["BLOCK_I"]), launch.grid[2])
    parts = [max(0, min(per_split, steps - split * per_split)) for split in range(launch.grid[2])]
    return [(part,) for part in parts for _ in range(launch.grid[0] * launch.grid[1])]
