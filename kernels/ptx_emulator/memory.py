"""The two memories of a GPU: global memory with bounds, and shared memory that notices missing barriers.

Addresses in global memory are made up: each tensor's storage gets a range of 2^40 bytes of its own, at the alignment it
really has. So an address that a kernel computes from a pointer is inside of that tensor, or a fault.

Shared memory is checked by a happens-before rule per block. Two accesses to a byte conflict if one of them writes and
different warps make them; they must have a barrier of the block between them. An asynchronous copy (cp.async) writes
from the moment it is issued to the wait that covers it: no thread may touch its bytes in between, and reads of them are
undefined. A matrix product that reads shared memory (wgmma) does so from its issue to the wait that covers it. Within a
warp, threads run in lock-step; races between them are not detected.
"""

import numpy as np
import torch

from ptx_emulator.errors import MemoryFault, RaceError
from ptx_emulator.numbers import UNSIGNED

SLOT_BITS = 40
MANY_WARPS = 63  # more warps than a block may have
ON_ITS_WAY = np.iinfo(np.int32).max  # a stamp later than all others: a cp.async has not landed


class GlobalMemory:
    """Storages of tensors, by made-up address."""

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []
        self._bases: list[int] = []
        self._names: list[str] = []
        self._slot_of: dict[int, int] = {}

    def address_of(self, tensor: torch.Tensor, name: str = "") -> int:
        """Address of the tensor's first element; all views of one storage lie in one range."""
        storage = tensor.untyped_storage()
        slot = self._slot_of.get(storage.data_ptr())
        if slot is None:
            slot = self._slot_of[storage.data_ptr()] = len(self._buffers)
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._buffers.append(flat.numpy())
            middle = (1 << SLOT_BITS) // 2  # addresses just before a tensor are not another tensor's either
            self._bases.append(((slot + 1) << SLOT_BITS) + middle + storage.data_ptr() % 256)
            self._names.append(name or f"tensor {slot}")
        return self._bases[slot] + tensor.storage_offset() * tensor.element_size()

    def load(self, addresses: np.ndarray, width: int, count: int) -> list[np.ndarray]:
        """`count` unsigned integers of `width` bytes from each address."""
        unit = UNSIGNED[8 * width]
        found = [np.zeros(len(addresses), unit) for _ in range(count)]
        for chosen, units, first in self._ranges(addresses, width, count, "read"):
            for i, values in enumerate(found):
                values[chosen] = units[first + i]
        return found

    def store(self, addresses: np.ndarray, columns: list[np.ndarray]) -> None:
        """Unsigned integers, side by side from each address on. If two threads write to one address, one wins."""
        width = columns[0].dtype.itemsize
        for chosen, units, first in self._ranges(addresses, width, len(columns), "write"):
            for i, values in enumerate(columns):
                units[first + i] = values[chosen]

    def exchange(self, addresses: np.ndarray, values: np.ndarray, update) -> np.ndarray:
        """Replace each old value by update(old, value), thread by thread (atomics); returns the old values."""
        old = np.empty_like(values)
        for chosen, units, first in self._ranges(addresses, values.dtype.itemsize, 1, "update"):
            where = np.arange(len(addresses))[chosen]
            for thread, place in zip(where, first, strict=True):
                old[thread] = units[place]
                units[place] = update(old[thread], values[thread])
        return old

    def _ranges(self, addresses: np.ndarray, width: int, count: int, what: str):
        """For each tensor: which addresses are its own, its memory in units of `width` bytes, their first units."""
        if len(addresses) == 0:
            return
        num_bytes = width * count
        if (misaligned := addresses & np.uint64(num_bytes - 1)).any():
            bad = addresses[misaligned != 0][0]
            raise MemoryFault(f"misaligned {what} of {num_bytes} bytes at {self.describe(int(bad))}")
        slots = (addresses >> np.uint64(SLOT_BITS)).astype(np.int64) - 1
        one = (slots == slots[0]).all()
        for slot in slots[:1] if one else np.unique(slots):
            chosen: np.ndarray | slice = slice(None) if one else slots == slot
            mine = addresses[chosen]
            if not 0 <= slot < len(self._buffers):
                raise MemoryFault(f"{what} of {num_bytes} bytes at {self.describe(int(mine[0]))}")
            buffer, base = self._buffers[slot], self._bases[slot]
            offsets = mine.astype(np.int64) - base
            outside = (offsets < 0) | (offsets + num_bytes > len(buffer))
            if outside.any():
                raise MemoryFault(f"{what} of {num_bytes} bytes at {self.describe(int(mine[outside][0]))}")
            yield chosen, self._units(buffer, base, width), offsets // width

    def _units(self, buffer: np.ndarray, base: int, width: int) -> np.ndarray:
        if base % width:
            raise MemoryFault(f"a tensor starts at an address that is not a multiple of {width}")
        return buffer[: len(buffer) // width * width].view(UNSIGNED[8 * width])

    def describe(self, address: int) -> str:
        """'k_ptr + 4096 bytes of 2048' and the like."""
        slot = (address >> SLOT_BITS) - 1
        if 0 <= slot < len(self._buffers):
            return (
                f"byte {address - self._bases[slot]:,} of {self._names[slot]}, which has {len(self._buffers[slot]):,}"
            )
        return f"{address:#x}, which is in no tensor"


class SharedMemory:
    """Shared memory of several blocks side by side, with a record of the latest accesses to each granule.

    Args:
        num_blocks, num_bytes: Blocks, and bytes per block.
        granule: Bytes per entry of the records: the narrowest access of the program, so that neighbours do not clash.
    """

    def __init__(self, num_blocks: int, num_bytes: int, granule: int) -> None:
        self.stride = -(-max(num_bytes, 16) // 16) * 16
        self.num_bytes = num_bytes
        self.bytes = np.full(num_blocks * self.stride, 0xFF, np.uint8)
        self._granule = granule
        size = len(self.bytes) // granule
        # A stamp is epoch * 64 + warp; the epoch of a block counts its barriers, from 1.
        self.epoch = np.ones(num_blocks, np.int32)
        self._written = np.zeros(size, np.int32)
        self._read = np.zeros(size, np.int32)
        self._multiplying = np.zeros(size, np.int16)  # matrix products that may still read it
        self._unfenced = np.zeros(size, bool)  # written by threads, and no fence before the matrix unit reads it

    def barrier(self, blocks: np.ndarray | slice) -> None:
        self.epoch[blocks] += 1

    def fence(self, blocks: np.ndarray | slice) -> None:
        """Writes of threads become visible to the matrix unit (fence.proxy.async)."""
        self._unfenced.reshape(len(self.epoch), -1)[blocks] = False

    def load(self, starts: np.ndarray, blocks: np.ndarray, warps: np.ndarray, num_bytes: int) -> np.ndarray:
        """uint8 [n, num_bytes] from each start (an address within its block)."""
        firsts = self._firsts(starts, blocks, num_bytes, "read")
        self._note_read(self._granules(firsts, num_bytes), blocks, warps)
        return self.bytes.reshape(-1, num_bytes)[firsts // num_bytes]

    def store(self, starts: np.ndarray, blocks: np.ndarray, warps: np.ndarray, data: np.ndarray) -> None:
        """data: uint8 [n, num_bytes]."""
        num_bytes = data.shape[1]
        firsts = self._firsts(starts, blocks, num_bytes, "write")
        memory, rows = self.bytes.reshape(-1, num_bytes), firsts // num_bytes
        changed = (memory[rows] != data).reshape(len(data), -1, self._granule).any(2)
        self._note_write(self._granules(firsts, num_bytes), blocks, warps, changed)
        memory[rows] = data
        if (memory[rows] != data).any():
            raise RaceError("two threads write different values to one place of shared memory at once")

    def issue_copy(self, starts: np.ndarray, blocks: np.ndarray, warps: np.ndarray, num_bytes: int) -> np.ndarray:
        """Begin an asynchronous copy: its bytes are garbage until `land_copy`. Returns where they begin."""
        firsts = self._firsts(starts, blocks, num_bytes, "asynchronous copy")
        granules = self._granules(firsts, num_bytes)
        self._note_write(granules, blocks, warps, np.ones(granules.shape, bool))
        self._written[granules] = ON_ITS_WAY
        self.bytes.reshape(-1, num_bytes)[firsts // num_bytes] = 0xFF
        return firsts

    def land_copy(self, firsts: np.ndarray, blocks: np.ndarray, warps: np.ndarray, data: np.ndarray) -> None:
        num_bytes = data.shape[1]
        granules = self._granules(firsts, num_bytes)
        self._written[granules] = self._stamps(blocks, warps)
        self._unfenced[granules] = True
        self.bytes.reshape(-1, num_bytes)[firsts // num_bytes] = data

    def begin_product(self, chunks: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """From now on matrix units may read 16 bytes from each of these indices into `bytes`, a row per warpgroup.

        Returns their granules, for `end_product`.
        """
        granules = (chunks[..., None] + np.arange(0, 16, self._granule)).reshape(len(chunks), -1) // self._granule
        written = self._written[granules]
        if (written == ON_ITS_WAY).any():
            raise RaceError("a matrix product reads shared memory before the wait for the copy that fills it")
        if (written >= 64 * self.epoch[blocks][:, None]).any():
            raise RaceError("a matrix product reads what single warps wrote, with no barrier in between")
        if self._unfenced[granules].any():
            raise RaceError("a matrix product reads what threads wrote, with no fence.proxy.async in between")
        for mine in granules:  # warpgroups of a block share tiles; one tile holds a granule once
            self._multiplying[mine] += 1
        return granules

    def end_product(self, granules: np.ndarray, blocks: np.ndarray, warps: np.ndarray) -> None:
        """The products have read; `warps` waited for them, and only a barrier makes this known to other warps."""
        for mine, block, warp in zip(granules, blocks, warps, strict=True):
            self._multiplying[mine] -= 1
            self._stamp_read(mine, self.epoch[block] * 64, self.epoch[block] * 64 + warp)

    def _stamp_read(self, granules: np.ndarray, epoch_start: np.ndarray, stamp: np.ndarray) -> None:
        read = self._read[granules]
        several = (read >= epoch_start) & (read != stamp)
        self._read[granules] = np.where(several, epoch_start + MANY_WARPS, stamp)

    def _firsts(self, starts: np.ndarray, blocks: np.ndarray, num_bytes: int, what: str) -> np.ndarray:
        """Indices into `bytes` of accesses of num_bytes, which are within their block and aligned."""
        starts = starts.astype(np.int64)
        if (starts & num_bytes - 1).any():
            raise MemoryFault(f"misaligned {what} of {num_bytes} bytes in shared memory")
        if len(starts) and (starts.min() < 0 or starts.max() + num_bytes > self.num_bytes):
            worst = int(starts.max() if (starts >= 0).all() else starts.min())
            raise MemoryFault(f"{what} of {num_bytes} bytes at {worst:,} of {self.num_bytes:,} of shared memory")
        return starts + blocks * self.stride

    def _granules(self, firsts: np.ndarray, num_bytes: int) -> np.ndarray:
        """[n, granules of each access]"""
        return (firsts // self._granule)[:, None] + np.arange(num_bytes // self._granule)

    def _stamps(self, blocks: np.ndarray, warps: np.ndarray) -> np.ndarray:
        return (self.epoch[blocks] * 64 + warps)[:, None]

    def _note_read(self, granules: np.ndarray, blocks: np.ndarray, warps: np.ndarray) -> None:
        stamp, epoch_start = self._stamps(blocks, warps), self.epoch[blocks][:, None] * 64
        written = self._written[granules]
        if ((written >= epoch_start) & (written != stamp)).any():
            self._refuse_on_its_way(written, "read before the wait for the asynchronous copy that fills it")
            raise RaceError("one warp reads shared memory that another wrote, with no barrier between them")
        self._stamp_read(granules, epoch_start, stamp)
        # Several warps of this access may have read one granule: it has the last warp's stamp now.
        now = self._read[granules]
        shared = (now != stamp) & (now & 63 != MANY_WARPS)
        if shared.any():
            self._read[granules[shared]] = np.broadcast_to(epoch_start + MANY_WARPS, granules.shape)[shared]

    def _note_write(self, granules: np.ndarray, blocks: np.ndarray, warps: np.ndarray, changed: np.ndarray) -> None:
        """Writing an unchanged value is not a race: Triton's replicated layouts do so."""
        self._refuse_on_its_way(self._written[granules], "written while an asynchronous copy to it is on its way")
        if self._multiplying[granules].any():
            raise RaceError("shared memory is written while a matrix product that reads it has not been waited for")
        stamp, epoch_start = self._stamps(blocks, warps), self.epoch[blocks][:, None] * 64
        for what, record in (("wrote", self._written), ("read", self._read)):
            before = record[granules]
            if ((before >= epoch_start) & (before != stamp) & changed).any():
                raise RaceError(f"one warp writes shared memory that another {what}, with no barrier between them")
        self._written[granules] = stamp
        self._unfenced[granules] = True

    def _refuse_on_its_way(self, written: np.ndarray, what: str) -> None:
        if (written == ON_ITS_WAY).any():
            raise RaceError(f"shared memory is {what}")
