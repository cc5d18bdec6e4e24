"""Pages of one layer as a flat buffer, out of one cache and into another.

A buffer holds whole blocks, whatever is in them: K of all blocks, V of all blocks, and, quantised, the scales of K and
of V, each [n, H_kv, page, D] or [n, H_kv, page] in the cache's own bytes. So what arrives equals bit for bit what was
sent, and a block may have another number there.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase_features.parallel._protocol import Pages


def layer_bytes(spec: KVCacheSpec, num_blocks: int) -> int:
    """Bytes of a buffer. Worked example: SmolLM2-135M in fp32, block size 16: 2 * 3 * 16 * 64 * 4 = 24,576 a block."""
    return num_blocks * spec.bytes_per_block // spec.num_layers


@torch.inference_mode()
def pack_layer(kv_cache: KVCache, layer: int, block_ids: Sequence[int]) -> UInt8[Tensor, "n"]:
    """Copy a layer's pages into a new buffer on the cache's device."""
    index = torch.tensor(block_ids, device=kv_cache.device)
    num_bytes = layer_bytes(kv_cache.spec, len(block_ids))
    buffer = torch.empty(num_bytes, dtype=torch.uint8, device=kv_cache.device)
    for source, part in zip(_tensors(kv_cache, layer), _parts(kv_cache, layer, buffer, len(block_ids)), strict=True):
        torch.index_select(source, 0, index, out=part)
    return buffer


@torch.inference_mode()
def unpack_layer(kv_cache: KVCache, layer: int, buffer: UInt8[Tensor, "n"], block_ids: Sequence[int | None]) -> None:
    """Write a buffer's blocks into a layer's pages; those that go to None are dropped."""
    rows = [row for row, block_id in enumerate(block_ids) if block_id is not None]
    targets = torch.tensor([block_ids[row] for row in rows], dtype=torch.int64, device=kv_cache.device)
    for target, part in zip(_tensors(kv_cache, layer), _parts(kv_cache, layer, buffer, len(block_ids)), strict=True):
        target.index_copy_(0, targets, part if len(rows) == len(block_ids) else part[rows])


def _tensors(kv_cache: KVCache, layer: int) -> list[Tensor]:
    return [tensor[layer] for tensor in kv_cache.storage]


def _parts(kv_cache: KVCache, layer: int, buffer: Tensor, num_blocks: int) -> list[Tensor]:
    """The buffer seen as `num_blocks` pages of K, of V, and of their scales."""
    parts, start = [], 0
    for tensor in _tensors(kv_cache, layer):
        shape = (num_blocks, *tensor.shape[1:])
        end = start + torch.Size(shape).numel() * tensor.itemsize
        parts.append(buffer[start:end].view(tensor.dtype).view(shape))
        start = end
    return parts


class _Incoming(NamedTuple):
    """A prompt on its way in.

    Attributes:
        written: For each layer and each block of the prompt, whether its pages are there.
    """

    block_ids: tuple[int, ...]
    written: Bool[Tensor, "layers blocks"]


@final
class KVReceiver:
    """Writes arriving pages into the blocks reserved for them: in the receiving thread, while the engine computes.

    It notes what it has written: pages that did not come, or could not be written, are missing when all have been sent
    (`first_missing`), and can be sent again.

    That is safe without locking the cache: a block that was reserved for a prompt is read and written by nothing else
    until the prompt is adopted, or forgotten. After `forget` has returned, none of its blocks is written any more.
    """

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self._incoming: dict[str, _Incoming] = {}
        self._lock = threading.Lock()

    def expect(self, request_id: str, block_ids: Sequence[int], first_block: int) -> None:
        """The blocks of a request's prompt, in order; those before the `first_block`-th are filled already."""
        written = torch.zeros(self._kv_cache.spec.num_layers, len(block_ids), dtype=torch.bool)
        written[:, :first_block] = True
        with self._lock:
            self._incoming[request_id] = _Incoming(tuple(block_ids), written)

    def first_missing(self, request_id: str) -> int | None:
        """The first block of an expected prompt of which a layer has not been written; None: all are there."""
        with self._lock:
            is_there = self._incoming[request_id].written.all(dim=0)
        return None if is_there.all() else int(is_there.logical_not().nonzero()[0])

    def forget(self, request_id: str) -> None:
        """Whatever still comes for this request is dropped."""
        with self._lock:
            self._incoming.pop(request_id, None)

    def num_bytes(self, pages: Pages) -> int:
        """Of each of the buffers that `pages` announces."""
        return layer_bytes(self._kv_cache.spec, sum(each.num_blocks for each in pages.ranges))

    def receive(self, pages: Pages, layer: int, buffer: UInt8[Tensor, "n"]) -> None:
        """Write a layer's buffer into the blocks of its prompts. If torch cannot (no memory for a copy, say), its pages
        are missing, and that is all."""
        with self._lock:
            targets: list[int | None] = []
            filled: list[Tensor] = []
            for each in pages.ranges:
                incoming = self._incoming.get(each.request_id)
                if incoming is None:
                    targets += [None] * each.num_blocks
                    continue
                end = each.first_block + each.num_blocks
                targets += incoming.block_ids[each.first_block : end]
                filled.append(incoming.written[layer, each.first_block : end])
            if filled:
                with suppress(RuntimeError):
                    unpack_layer(self._kv_cache, layer, buffer, targets)
                    for written in filled:
                        written.fill_(True)
