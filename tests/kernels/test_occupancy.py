"""Occupancy against worked examples of NVIDIA's documentation, and each limit by itself."""

import pytest

from ptx_emulator.occupancy import MULTIPROCESSORS, Multiprocessor, occupancy

A100, H100, ADA = (MULTIPROCESSORS[name] for name in ("A100", "H100", "RTX 4090"))
V100 = Multiprocessor("V100", "7.0", 64, 32, 96 * 1024, 96 * 1024)


@pytest.mark.parametrize(
    ("card", "num_warps", "registers", "shared_kib", "blocks", "limited_by"),
    [
        # CUDA C++ Best Practices Guide, 'Occupancy' (compute capability 7.0): blocks of 128 and of 320.
        (V100, 4, 37, 0, 12, "registers"),
        (V100, 10, 37, 0, 4, "registers"),
        (A100, 8, 32, 0, 8, "registers and warps"),
        (A100, 8, 33, 0, 6, "registers"),  # 1,280 registers a warp: 12 in each quarter
        (A100, 1, 16, 0, 32, "blocks"),
        (A100, 4, 128, 81, 2, "shared memory"),  # 164 KiB, and 1 KiB of each block is the driver's
        (A100, 4, 128, 82, 1, "shared memory"),
        (A100, 4, 128, 164, 0, "shared memory"),
        (H100, 4, 128, 75, 3, "shared memory"),
        (H100, 8, 168, 0, 1, "registers"),  # 5,376 a warp: 3 in each quarter, 12 warps
        (ADA, 4, 40, 0, 12, "registers and warps"),
        (ADA, 4, 32, 49, 2, "shared memory"),
    ],
)
def test_limits(card, num_warps, registers, shared_kib, blocks, limited_by):
    found = occupancy(card, num_warps, registers, shared_kib * 1024)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert (found.warps, found.fraction) == (blocks * num_warps, blocks * num_warps / card.max_warps)


def test_impossible_blocks_are_refused():
    with pytest.raises(ValueError, match="num_warps should be 1 to 32, got 33"):
        occupancy(A100, 33, 32, 0)
    with pytest.raises(ValueError, match="registers should be 0 to 255, got 256"):
        occupancy(A100, 4, 256, 0)
