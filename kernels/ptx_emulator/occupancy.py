"""The number of programs of a kernel that run on one multiprocessor (SM) at once, and the limiting resource.

Limits: CUDA C++ Programming Guide, table 'Technical Specifications per Compute Capability'. The allocation granularity
    of registers and shared memory: cuda_occupancy.h of the CUDA toolkit.
"""

from dataclasses import dataclass

WARP = 32
SM_PARTS = 4  # an SM has four schedulers with a quarter of the registers each; a warp lives in one of them
REGISTERS = 65536  # per SM, on every compute capability since 5.0
REGISTER_PORTION = 256  # per warp
MAX_REGISTERS = 255  # per thread
MAX_WARPS = 32  # per block
SHARED_PORTION = 128  # bytes
SYSTEM_SHARED = 1024  # bytes of each block that the CUDA driver keeps, since 8.0


@dataclass(frozen=True)
class Multiprocessor:
    """The limits of one SM. Shared memory is in bytes; `shared_per_block` is a block's limit."""

    card: str
    capability: str
    max_warps: int
    max_blocks: int
    shared: int
    shared_per_block: int


MULTIPROCESSORS = {
    "A100": Multiprocessor("A100", "8.0", 64, 32, 164 * 1024, 163 * 1024),
    "RTX 4090": Multiprocessor("RTX 4090", "8.9", 48, 24, 100 * 1024, 99 * 1024),
    "H100": Multiprocessor("H100", "9.0", 64, 32, 228 * 1024, 227 * 1024),
    "B200": Multiprocessor("B200", "10.0", 64, 32, 228 * 1024, 227 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps on an SM at once; `limited_by` names the limiting resource.

    `limited_by`: 'registers', 'shared memory', 'warps' or 'blocks' (all that apply, joined by ' and ').
    """

    card: str
    blocks: int
    warps: int
    max_warps: int
    limited_by: str

    @property
    def fraction(self) -> float:
        return self.warps / self.max_warps


def occupancy(card: Multiprocessor, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The number of blocks that fit on a multiprocessor.

    Args:
        num_warps: Per block.
        registers: Per thread.
        shared_bytes: Per block, without the driver's own.

    Raises:
        ValueError: More warps or registers than a block can have. (Too much shared memory gives 0 blocks.)
    """
    for what, value, lowest, highest in (
        ("num_warps", num_warps, 1, MAX_WARPS),
        ("registers", registers, 0, MAX_REGISTERS),
    ):
        if not lowest <= value <= highest:
            raise ValueError(f"{what} should be {lowest} to {highest}, got {value}")
    if shared_bytes < 0:
        raise ValueError(f"shared_bytes should be 0 or more, got {shared_bytes}")
    per_warp = _portions(max(1, registers) * WARP, REGISTER_PORTION)
    warps_by_registers = REGISTERS // SM_PARTS // per_warp * SM_PARTS
    per_block = _portions(shared_bytes + SYSTEM_SHARED, SHARED_PORTION)
    limits = {
        "registers": warps_by_registers // num_warps,
        "shared memory": card.shared // per_block if shared_bytes <= card.shared_per_block else 0,
        "warps": card.max_warps // num_warps,
        "blocks": card.max_blocks,
    }
    blocks = min(limits.values())
    limited_by = " and ".join(what for what, limit in limits.items() if limit == blocks)
    return Occupancy(card.card, blocks, blocks * num_warps, card.max_warps, limited_by)


def _portions(amount: int, portion: int) -> int:
    return -(-amount // portion) * portion
