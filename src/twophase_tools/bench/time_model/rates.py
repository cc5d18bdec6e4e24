"""What a Hopper multiprocessor (SM) does per cycle, and what the time model assumes besides. No number is fitted to the
measured time of a kernel."""

from typing import NamedTuple

GUIDE = "CUDA C++ Best Practices Guide, 'Throughput of Native Arithmetic Instructions', compute capability 9.0"
PEAKS = "H100 data sheet: 989.4 TFLOP/s of dense bf16 = 132 SMs x 4,096 x 1.83 GHz; fp8 twice that"
MMA = "arXiv:2402.13499: mma.sync reaches 62.9 % of the peak on an H100, wgmma all of it"
L2 = "A100 whitepaper, page 35: 5,120 of the whole cache, here by 132 SMs; the bounds are assumed"


class Rate(NamedTuple):
    """A number for the lower bound, one for the prediction, and one for the upper bound."""

    lower: float | int
    predicted: float | int
    upper: float | int
    unit: str
    source: str


def _same(rate: float | int, unit: str, source: str) -> Rate:
    return Rate(rate, rate, rate, unit, source)


# Per SM and cycle. Pipes with a variable latency come last: their time is in no instruction's stall count.
PIPES = {
    "issue": _same(4, "warp instructions", "H100 whitepaper: four schedulers, one instruction a cycle each"),
    "fma": _same(128, "lanes", f"{GUIDE}: fp32 and pairs of fp16"),
    "imad": _same(64, "lanes", f"{GUIDE}: 32-bit integer multiply-add"),
    "alu": _same(64, "lanes", f"{GUIDE}: integer add, compare, logic, shift"),
    "convert": Rate(64, 64, 16, "results", f"{GUIDE}: type conversions, 64 or 16 by type"),
    "l2": Rate(64, 38.8, 27.5, "bytes", L2),
    "mufu": _same(16, "lanes", f"{GUIDE}: reciprocal, root, exp2"),
    "shared": _same(128, "bytes", "CUDA C++ Programming Guide: 32 banks of 4 bytes; wgmma's own reads are not counted"),
    "tensor": _same(4096, "FLOPs", PEAKS),
    "tensor fp8": _same(8192, "FLOPs", PEAKS),
    "mma.sync": Rate(4096, 2576, 2576, "FLOPs", MMA),
}
VARIABLE_LATENCY = ("mufu", "shared", "tensor", "tensor fp8", "mma.sync")

ASSUMED = {
    "clock_hz": Rate(1.98e9, 1.83e9, 1.5e9, "Hz", "the highest; that of the data sheet's FLOP/s; assumed when hot"),
    "hbm_share": Rate(1.0, 0.9, 0.8, "of the peak", "0.88 to 0.92: roofs of an H100 and an H200 in kernels/results"),
    "latency_s": Rate(0.24e-6, 0.6e-6, 1.2e-6, "s", "arXiv:2402.13499: 479 cycles, idle; assumed under load"),
    "round_trips": Rate(1, 2, 4, "latencies", "assumed: loads of a program that wait for another, outside its loops"),
    "launch_s": Rate(0.0, 1.0e-6, 3.0e-6, "s", "assumed: from one kernel of a CUDA graph to the next"),
}
NUM_SMS = 132  # of an H100 or H200 SXM
