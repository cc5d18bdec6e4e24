"""The two memories of a GPU: global memory with bounds, and shared memory that notices missing barriers.

Addresses in global memory are made up: each tensor's storage gets a range of 2^40 bytes of its own, at the alignment it
really has. So an address that a kernel computes from a pointer is inside of that tensor, or a fault. Blocks of a launch
have no order but by atomics: what one wrote, another may neither read nor change, and what one read, another may not
change.

Shared memory is checked by a happens-before rule per block. Two accesses to a byte conflict if one of them writes and
different warps make them; a barrier, or an mbarrier at which one arrives and for which the other waits, must order
them. An asynchronous copy writes from the moment it is issued to the wait that covers it: no thread may touch its bytes
in between, and reads of them are undefined. A copy by cp.async is then a write of the warp that waited; a bulk copy
(TMA) is one of its mbarrier, and known to whoever waits for that. Hardware that reads shared memory (wgmma, TMA) does
so from its issue to the wait that covers it. Within a warp, threads run in lock-step; races between them are not
detected.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ptx_emulator.errors import MemoryFault, RaceError
from ptx_emulator.numbers import UNSIGNED

SLOT_BITS = 40
AGENTS = 128  # warps and mbarriers of a block
SEVERAL = -1  # in place of a block
ON_ITS_WAY = np.iinfo(np.int32).max  # a stamp later than all others: a cp.async has not landed


@dataclass
class Storage:
    """A tensor's bytes, where they begin, and per granule the blocks of this launch that last wrote and read it.

    A block is noted by its number plus one; 0: none did, `SEVERAL`: they wrote the same value, or each read it.
    `written` tells of each byte whether anybody has ever written it; None: all are.
    """

    data: np.ndarray
    base: int
    name: str
    writers: np.ndarray
    readers: np.ndarray
    written: np.ndarray | None

    def units(self, width: int) -> np.ndarray:
        """Unsigned integers of `width` bytes."""
        if self.base % width:
            raise MemoryFault(f"a tensor starts at an address that is not a multiple of {width}")
        return self.data[: len(self.data) // width * width].view(UNSIGNED[8 * width])


class GlobalMemory:
    """Storages of tensors, by made-up address, for one launch.

    Args:
        granule: Bytes per entry of the records: the narrowest access of the program, so that neighbours do not clash.
        written: Of storages that hold bytes which nobody wrote: by data_ptr(), a bool per byte; kept up to date.
    """

    def __init__(self, granule: int = 1, written: Mapping[int, np.ndarray] | None = None) -> None:
        self._granule, self._written = granule, {} if written is None else written
        self._storages: list[Storage] = []
        self._slot_of: dict[int, int] = {}
        self._known: dict[int, set[int]] = {}  # by block: the blocks whose writes it may rely on
        self._released: dict[int, set[int]] = {}  # by address of atomics: the blocks that those who come next know

    def address_of(self, tensor: torch.Tensor, name: str = "") -> int:
        """Address of the tensor's first element; all views of one storage lie in one range."""
        storage = tensor.untyped_storage()
        slot = self._slot_of.get(storage.data_ptr())
        if slot is None:
            slot = self._slot_of[storage.data_ptr()] = len(self._storages)
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            middle = (1 << SLOT_BITS) // 2  # addresses just before a tensor are not another tensor's either
            base = ((slot + 1) << SLOT_BITS) + middle + storage.data_ptr() % 256
            writers, readers = (np.zeros(len(data) // self._granule + 1, np.int32) for _ in range(2))
            written = self._written.get(storage.data_ptr())
            self._storages.append(Storage(data, base, name or f"tensor {slot}", writers, readers, written))
        return self._storages[slot].base + tensor.storage_offset() * tensor.element_size()

    def load(self, addresses: np.ndarray, width: int, count: int, blocks: np.ndarray) -> list[np.ndarray]:
        """`count` unsigned integers of `width` bytes from each address, for the block of each."""
        found = [np.zeros(len(addresses), UNSIGNED[8 * width]) for _ in range(count)]
        for chosen, storage, offsets in self._ranges(addresses, width * count, "read"):
            self._note_read(storage, offsets, width * count, blocks[chosen])
            units, first = storage.units(width), offsets // width
            for i, values in enumerate(found):
                values[chosen] = units[first + i]
        return found

    def store(self, addresses: np.ndarray, columns: list[np.ndarray], blocks: np.ndarray) -> None:
        """Unsigned integers, side by side from each address on."""
        width = columns[0].dtype.itemsize
        for chosen, storage, offsets in self._ranges(addresses, width * len(columns), "write"):
            units, new = storage.units(width), np.stack(columns, 1)[chosen]
            places = (offsets // width)[:, None] + np.arange(len(columns))
            self._note_write(storage, offsets, units[places] != new, width, blocks[chosen])
            units[places] = new
            if (lost := units[places] != new).any():
                i, k = np.argwhere(lost)[0]
                winner = np.argwhere((places == places[i, k]) & ~lost)[0, 0]
                one, other = blocks[chosen][[i, winner]]
                where = self.describe(storage.base + int(places[i, k]) * width)
                raise RaceError(f"threads of blocks {one} and {other} write different values at once, at {where}")

    def exchange(
        self, addresses: np.ndarray, values: np.ndarray, update, blocks: np.ndarray, orders: bool
    ) -> np.ndarray:
        """Replace each old value by update(old, value), thread by thread (atomics); returns the old values.

        orders: By release and acquire, what was written before is known to the blocks that come after.
        """
        old, width = np.empty_like(values), values.dtype.itemsize
        for chosen, storage, offsets in self._ranges(addresses, width, "update"):
            units, where = storage.units(width), np.arange(len(addresses))[chosen]
            for thread, place in zip(where, offsets // width, strict=True):
                old[thread] = units[place]
                units[place] = update(old[thread], values[thread])
                if orders:
                    known = self._known.setdefault(int(blocks[thread]) + 1, {int(blocks[thread]) + 1})
                    released = self._released.setdefault(int(addresses[thread]), set())
                    known |= released
                    released |= known
        return old

    def _ranges(self, addresses: np.ndarray, num_bytes: int, what: str) -> Iterator[tuple]:
        """For each tensor: which addresses are its own, its storage, their offsets in bytes."""
        if len(addresses) == 0:
            return
        if (misaligned := addresses & np.uint64(num_bytes - 1)).any():
            bad = addresses[misaligned != 0][0]
            raise MemoryFault(f"misaligned {what} of {num_bytes} bytes at {self.describe(int(bad))}")
        slots = (addresses >> np.uint64(SLOT_BITS)).astype(np.int64) - 1
        one = (slots == slots[0]).all()
        for slot in slots[:1] if one else np.unique(slots):
            chosen: np.ndarray | slice = slice(None) if one else slots == slot
            mine = addresses[chosen]
            if not 0 <= slot < len(self._storages):
                raise MemoryFault(f"{what} of {num_bytes} bytes at {self.describe(int(mine[0]))}")
            storage = self._storages[slot]
            offsets = mine.astype(np.int64) - storage.base
            outside = (offsets < 0) | (offsets + num_bytes > len(storage.data))
            if outside.any():
                raise MemoryFault(f"{what} of {num_bytes} bytes at {self.describe(int(mine[outside][0]))}")
            yield chosen, storage, offsets

    def _note_read(self, storage: Storage, offsets: np.ndarray, num_bytes: int, blocks: np.ndarray) -> None:
        if storage.written is not None:
            is_written = storage.written[offsets[:, None] + np.arange(num_bytes)].all(1)
            if not is_written.all():
                bad = self.describe(storage.base + int(offsets[~is_written][0]))
                raise MemoryFault(f"read of {num_bytes} bytes that nobody wrote, at {bad}")
        granules, mine = self._granules(offsets, num_bytes), blocks[:, None] + 1
        writers = storage.writers[granules]
        writers = np.where(writers == SEVERAL, 0, writers)
        self._refuse_others(writers, mine, storage, granules, "reads what {} wrote")
        before = storage.readers[granules]
        _mark(storage.readers, granules, np.where((before == 0) | (before == mine), mine, SEVERAL))

    def _note_write(
        self, storage: Storage, offsets: np.ndarray, changed: np.ndarray, width: int, blocks: np.ndarray
    ) -> None:
        """Writing an unchanged value is not a race."""
        num_bytes, mine = width * changed.shape[1], blocks[:, None] + 1
        if storage.written is not None:
            storage.written[offsets[:, None] + np.arange(num_bytes)] = True
        granules, changed = self._granules(offsets, num_bytes), np.repeat(changed, width // self._granule, 1)
        before, readers = storage.writers[granules], storage.readers[granules]
        self._refuse_others(np.where(changed, before, 0), mine, storage, granules, "writes over what {} wrote")
        self._refuse_others(np.where(changed, readers, 0), mine, storage, granules, "writes over what {} read")
        _mark(storage.writers, granules, np.where(changed | (before == 0) | (before == mine), mine, SEVERAL))

    def _granules(self, offsets: np.ndarray, num_bytes: int) -> np.ndarray:
        """[n, granules of each access]"""
        return (offsets // self._granule)[:, None] + np.arange(num_bytes // self._granule)

    def _refuse_others(
        self, record: np.ndarray, mine: np.ndarray, storage: Storage, granules: np.ndarray, what: str
    ) -> None:
        """Raise if the record names a block that no atomic orders before the one which works now."""
        for i, k in np.argwhere((record != 0) & (record != mine)):
            other, me = int(record[i, k]), int(mine[i, 0])
            if other not in self._known.get(me, ()):
                where = self.describe(storage.base + int(granules[i, k]) * self._granule)
                name = "several blocks" if other == SEVERAL else f"block {other - 1}"
                raise RaceError(f"block {me - 1} {what.format(name)}, with nothing that orders them, at {where}")

    def describe(self, address: int) -> str:
        """'byte 4,096 of k_ptr, which has 2,048' and the like."""
        slot = (address >> SLOT_BITS) - 1
        if 0 <= slot < len(self._storages):
            storage = self._storages[slot]
            return f"byte {address - storage.base:,} of {storage.name}, which has {len(storage.data):,}"
        return f"{address:#x}, which is in no tensor"


def _mark(record: np.ndarray, granules: np.ndarray, marks: np.ndarray) -> None:
    record[granules] = marks
    record[granules[record[granules] != marks]] = SEVERAL  # of several blocks at once the last one was noted


class SharedMemory:
    """Shared memory of several blocks side by side, with a record of the latest accesses to each granule.

    Time is a vector clock per warp: how much it knows of each agent of its block, which are the warps and, from
    `num_warps` on, the mbarriers, in whose name bulk copies write. Warps are numbered through all blocks.

    Args:
        num_blocks, num_bytes: Blocks, and bytes per block.
        granule: Bytes per entry of the records: the narrowest access of the program, so that neighbours do not clash.
        num_warps: Of a block.
    """

    def __init__(self, num_blocks: int, num_bytes: int, granule: int, num_warps: int) -> None:
        self.stride = -(-max(num_bytes, 16) // 128) * 128
        self.num_bytes, self.num_warps = num_bytes, num_warps
        self.bytes = np.full(num_blocks * self.stride, 0xFF, np.uint8)
        self._granule = granule
        size = len(self.bytes) // granule
        self._known = np.zeros((num_blocks * num_warps, AGENTS), np.int32)
        self._tick(np.arange(len(self._known)))
        self._written = np.zeros(size, np.int32)  # by whom and when: clock * AGENTS + agent
        self._read = np.zeros((size, num_warps), np.int32)  # each warp's clock when it last read
        self._in_use = np.zeros(size, np.int16)  # matrix products and bulk copies that may still read it
        self._unfenced = np.zeros(size, bool)  # written by threads, and no fence before hardware reads or writes it

    # -- time ---------------------------------------------------------------------------------------------------------

    def synchronise(self, teams: np.ndarray) -> None:
        """A barrier: the warps of each row know from now on what any of them knows."""
        self._known[teams] = self._known[teams].max(1, keepdims=True)
        self._tick(teams.reshape(-1))

    def release(self, warp: int) -> np.ndarray:
        """What a warp knows and has done so far, for others to `acquire`."""
        knowledge = self._known[warp].copy()
        self._tick(np.array([warp]))
        return knowledge

    def acquire(self, warp: int, knowledge: np.ndarray) -> None:
        np.maximum(self._known[warp], knowledge, out=self._known[warp])

    def stamps(self, warps: np.ndarray) -> np.ndarray:
        """In whose name and when these warps write now, [n, 1]."""
        return (self._clocks(warps) * AGENTS + warps % self.num_warps)[:, None]

    def fence(self, warps: np.ndarray | slice) -> None:
        """Writes of threads that these warps know of become visible to hardware (fence.proxy.async)."""
        fencing = np.zeros(len(self._known), bool)
        fencing[warps] = True
        known = np.where(fencing[:, None], self._known, -1).reshape(-1, self.num_warps, AGENTS).max(1)
        places = np.flatnonzero(self._unfenced)
        written = self._written[places]
        self._unfenced[places] = known[places * self._granule // self.stride, written % AGENTS] < written // AGENTS

    def fence_bytes(self, starts: np.ndarray, warps: np.ndarray, num_bytes: int) -> None:
        """The same for these bytes alone."""
        self._unfenced[self._granules(self._firsts(starts, warps, num_bytes, "fence"), num_bytes)] = False

    def _tick(self, warps: np.ndarray) -> None:
        self._known[warps, warps % self.num_warps] += 1

    def _clocks(self, warps: np.ndarray) -> np.ndarray:
        return self._known[warps, warps % self.num_warps]

    # -- accesses of threads ------------------------------------------------------------------------------------------

    def load(self, starts: np.ndarray, warps: np.ndarray, num_bytes: int) -> np.ndarray:
        """uint8 [n, num_bytes] from each start (an address within its block)."""
        firsts = self._firsts(starts, warps, num_bytes, "read")
        granules = self._granules(firsts, num_bytes)
        written = self._written[granules]
        if (self._known[warps[:, None], written % AGENTS] < written // AGENTS).any():
            self._refuse_on_its_way(written, "read before the wait for the asynchronous copy that fills it")
            by_hardware = (written % AGENTS >= self.num_warps).any()
            self._refuse(
                "reads", "that a bulk copy filled, with no wait for it" if by_hardware else "that another wrote"
            )
        self.has_read(granules, warps)
        return self.bytes.reshape(-1, num_bytes)[firsts // num_bytes]

    def store(self, starts: np.ndarray, warps: np.ndarray, data: np.ndarray) -> None:
        """data: uint8 [n, num_bytes]."""
        num_bytes = data.shape[1]
        firsts = self._firsts(starts, warps, num_bytes, "write")
        memory, rows = self.bytes.reshape(-1, num_bytes), firsts // num_bytes
        changed = (memory[rows] != data).reshape(len(data), -1, self._granule).any(2)
        self._note_write(self._granules(firsts, num_bytes), warps, changed)
        memory[rows] = data
        if (memory[rows] != data).any():
            raise RaceError("two threads write different values to one place of shared memory at once")

    def has_read(self, granules: np.ndarray, warps: np.ndarray) -> None:
        """Each warp of [n] has read [n, granules], or waited for hardware that did."""
        self._read[granules, (warps % self.num_warps)[:, None]] = self._clocks(warps)[:, None]

    # -- accesses of hardware -----------------------------------------------------------------------------------------

    def issue_copy(self, starts: np.ndarray, warps: np.ndarray, num_bytes: int, is_bulk: bool = False) -> np.ndarray:
        """Begin an asynchronous copy: its bytes are garbage until `land_copy`. Returns where they begin."""
        firsts = self._firsts(starts, warps, num_bytes, "asynchronous copy")
        granules = self._granules(firsts, num_bytes)
        if is_bulk and self._unfenced[granules].any():
            raise RaceError("a bulk copy writes where threads wrote, with no fence.proxy.async in between")
        self._note_write(granules, warps, np.ones(granules.shape, bool))
        self._written[granules] = ON_ITS_WAY
        self._unfenced[granules] = not is_bulk
        self.bytes.reshape(-1, num_bytes)[firsts // num_bytes] = 0xFF
        return firsts

    def land_copy(self, firsts: np.ndarray, stamps: np.ndarray, data: np.ndarray, is_bulk: bool = False) -> None:
        """The bytes have arrived, uint8 [n, num_bytes], as a write of those that the stamps [n, 1] name."""
        granules = self._granules(firsts, data.shape[1])
        self._written[granules] = stamps
        self._unfenced[granules] = not is_bulk
        self.bytes.reshape(-1, data.shape[1])[firsts // data.shape[1]] = data

    def begin_reading(self, chunks: np.ndarray, teams: np.ndarray, who: str) -> np.ndarray:
        """From now on hardware may read 16 bytes from each of these indices into `bytes`, a row per team of warps.

        Returns their granules, for `end_reading`.
        """
        granules = (chunks[..., None] + np.arange(0, 16, self._granule)).reshape(len(chunks), -1) // self._granule
        written = self._written[granules]
        known = np.take_along_axis(self._known[teams].min(1), written % AGENTS, 1)
        if (known < written // AGENTS).any():
            if (written == ON_ITS_WAY).any() or (written % AGENTS >= self.num_warps).any():
                raise RaceError(f"{who} reads shared memory before the wait for the copy that fills it")
            raise RaceError(f"{who} reads what single warps wrote, with no barrier in between")
        if self._unfenced[granules].any():
            raise RaceError(f"{who} reads what threads wrote, with no fence.proxy.async in between")
        for mine in granules:  # teams of a block share tiles; one tile holds a granule once
            self._in_use[mine] += 1
        return granules

    def end_reading(self, granules: np.ndarray) -> None:
        for mine in granules:
            self._in_use[mine] -= 1

    # -- records ------------------------------------------------------------------------------------------------------

    def _firsts(self, starts: np.ndarray, warps: np.ndarray, num_bytes: int, what: str) -> np.ndarray:
        """Indices into `bytes` of accesses of num_bytes, which are within their block and aligned."""
        starts = starts.astype(np.int64)
        if (starts & num_bytes - 1).any():
            raise MemoryFault(f"misaligned {what} of {num_bytes} bytes in shared memory")
        if len(starts) and (starts.min() < 0 or starts.max() + num_bytes > self.num_bytes):
            worst = int(starts.max() if (starts >= 0).all() else starts.min())
            raise MemoryFault(f"{what} of {num_bytes} bytes at {worst:,} of {self.num_bytes:,} of shared memory")
        return starts + warps // self.num_warps * self.stride

    def _granules(self, firsts: np.ndarray, num_bytes: int) -> np.ndarray:
        """[n, granules of each access]"""
        return (firsts // self._granule)[:, None] + np.arange(num_bytes // self._granule)

    def _note_write(self, granules: np.ndarray, warps: np.ndarray, changed: np.ndarray) -> None:
        """Writing an unchanged value is not a race: Triton's replicated layouts do so."""
        written = self._written[granules]
        self._refuse_on_its_way(written, "written while an asynchronous copy to it is on its way")
        if self._in_use[granules].any():
            raise RaceError(
                "shared memory is written while hardware that reads it (wgmma, TMA) has not been waited for"
            )
        known = self._known[warps][:, None, : self.num_warps]
        if ((self._known[warps[:, None], written % AGENTS] < written // AGENTS) & changed).any():
            self._refuse("writes", "that another wrote")
        if ((self._read[granules] > known).any(2) & changed).any():
            self._refuse("writes", "that another read")
        self._written[granules] = self.stamps(warps)
        self._unfenced[granules] = True

    def _refuse(self, does: str, what: str) -> None:
        raise RaceError(f"one warp {does} shared memory {what}, with no barrier between them")

    def _refuse_on_its_way(self, written: np.ndarray, what: str) -> None:
        if (written == ON_ITS_WAY).any():
            raise RaceError(f"shared memory is {what}")
