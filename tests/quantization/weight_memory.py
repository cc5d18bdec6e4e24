"""How many bytes weights take in memory."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor


def weight_memory_bytes(weights: object) -> int:
    """Bytes of all tensors in a record of weights, with the plain copies that a CPU keeps for steps of many rows.

    Memory that several of them share counts once: a kernel may read oneDNN's own memory.
    """
    sizes: dict[object, int] = {}
    for tensor in _tensors(weights):
        if tensor.is_mkldnn:  # in oneDNN's own layout, without a storage to be asked
            key, num_bytes = (torch.ops.mkldnn.data_ptr(tensor), tensor.device), tensor.numel() * tensor.itemsize
        else:
            storage = tensor.untyped_storage()
            key, num_bytes = (storage.data_ptr(), tensor.device), storage.nbytes()
        sizes[key] = min(num_bytes, sizes.get(key, num_bytes))
    return sum(sizes.values())


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
