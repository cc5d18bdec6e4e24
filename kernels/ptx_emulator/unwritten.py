"""Memory that holds what nobody wrote: what torch.empty returns, until torch or a kernel writes to it."""

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class UnwrittenMemory(TorchDispatchMode):
    """Notes which bytes of the tensors that torch.empty and the like make in it have been written by torch since.

    (Not what is written through numpy.) The tensors live as long as this does, so that no other takes their place.
    """

    def __init__(self, written: dict[int, np.ndarray]) -> None:
        super().__init__()
        self._written = written
        self._tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        options = options or {}
        result = op(*args, **options)
        if "empty" in op.__name__ and isinstance(result, torch.Tensor) and result.device.type == "cpu":
            storage = result.untyped_storage()
            self._written[storage.data_ptr()] = np.zeros(storage.nbytes(), bool)
            self._tensors.append(result)
        for i, argument in enumerate(op._schema.arguments):
            changed = options.get(argument.name, args[i] if i < len(args) else None)
            if argument.is_write and isinstance(changed, torch.Tensor) and not op.__name__.startswith("set_"):
                self._note_write(changed)
        return result

    def _note_write(self, tensor: torch.Tensor) -> None:
        written, size = self._written.get(tensor.untyped_storage().data_ptr()), tensor.element_size()
        if written is not None:
            shape, strides = (*tensor.shape, size), (*(size * stride for stride in tensor.stride()), 1)
            torch.from_numpy(written).as_strided(shape, strides, size * tensor.storage_offset()).fill_(True)
