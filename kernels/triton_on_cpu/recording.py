"""Launches recorded once and repeated by one call of C, as a CUDA graph repeats them: same kernels, same buffers.

Operations of torch may stand between the launches. C then runs the launches up to the next operation, and torch repeats
that into the memory of its first result.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from triton_on_cpu.driver import active_driver
from triton_on_cpu.errors import TritonOnCpuError
from triton_on_cpu.pool import list_of, num_threads, pool

ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


class Recording:
    """A list of launches, each with the addresses and values of its arguments, and of torch's operations between them.

    The tensors are kept alive. A replay reads and writes the same memory: write new inputs into the same tensors, in
    place. Grids and scalars stay as recorded.
    """

    def __init__(self) -> None:
        self._parts: list[_Launches | _Operation] = []

    def __len__(self) -> int:
        """The number of launches."""
        return sum(len(part.packed) for part in self._parts if isinstance(part, _Launches))

    def add(self, launcher: Any, packed: bytes, values: tuple[Any, ...]) -> None:
        """A launch, as launch.py packs it."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Launches):
            last = _Launches()
            self._parts.append(last)
        last.add(launcher, packed, values)

    def add_operation(self, operation: "_Operation") -> None:
        self._parts.append(operation)

    def replay(self) -> None:
        """All of it again, in order; a launch begins when the one before has ended. Between launches there is no
        Python."""
        for part in self._parts:
            part.repeat()


class _Launches:
    """Launches that follow each other."""

    def __init__(self) -> None:
        self.packed: list[bytes] = []
        self._kept: list[Any] = []
        self._list: ctypes.Array[ctypes.c_char_p] | None = None

    def add(self, launcher: Any, packed: bytes, values: tuple[Any, ...]) -> None:
        self.packed.append(packed)
        self._kept.append((launcher, values))
        self._list = None

    def repeat(self) -> None:
        if self._list is None:
            self._list = list_of(self.packed)
        pool().pool_run(self._list, len(self.packed), num_threads())


class _Operation:
    """An operation of torch. Its new result is copied to where the result was when it was recorded."""

    def __init__(self, function: Any, args: Any, kwargs: Any, fresh: list[int], results: list[Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._results = [(i, results[i]) for i in fresh]

    def repeat(self) -> None:
        results = tree_leaves(self._function(*self._args, **self._kwargs))
        for i, recorded in self._results:
            recorded.copy_(results[i])


class _Operations(TorchDispatchMode):
    """Sees each operation of torch while launches are recorded, and records it or refuses it.

    A replay that left out an operation would go on with old contents of its result. Allocations and views need no
    repetition. Whether a result is a view is seen from its memory, because `contiguous`, `to` and their kin return a
    view or a copy.
    """

    def __init__(self, recording: Recording, is_recorded: bool) -> None:
        super().__init__()
        self._recording, self._is_recorded = recording, is_recorded

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, is_mutable = function._schema.name, function._schema.is_mutable
        before = {_address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        if not self._is_recorded and is_mutable and torch.Tag.inplace_view not in function.tags:
            self._refuse(name)
        result = function(*args, **kwargs)
        if name in ALLOCATIONS or torch.Tag.inplace_view in function.tags:
            return result
        results = tree_leaves(result)
        fresh = [i for i, leaf in enumerate(results) if not isinstance(leaf, Tensor) or _address(leaf) not in before]
        if fresh or is_mutable:
            if not self._is_recorded:
                self._refuse(name)
            has_free_shape = torch.Tag.dynamic_output_shape in function.tags
            if has_free_shape or not all(isinstance(results[i], Tensor) for i in fresh):
                raise TritonOnCpuError(
                    f"{name.removeprefix('aten::')} cannot be recorded: its result is a number for Python, or its "
                    "result's shape depends on numbers in tensors."
                )
            self._recording.add_operation(_Operation(function, args, kwargs, fresh, results))
        return result

    @staticmethod
    def _refuse(name: str) -> None:
        raise TritonOnCpuError(
            f"torch computes {name.removeprefix('aten::')} while launches are recorded. A replay repeats kernels "
            "only: compute it before `record()`, after it, or by a kernel, or use record(torch_operations=True)."
        )


def _address(tensor: Tensor) -> int:
    """The address of the memory that a tensor is a view of; 0 where torch does not tell, as of oneDNN's layouts."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


@contextlib.contextmanager
def record(torch_operations: bool = False) -> Iterator[Recording]:
    """Within it launches run as always, and are recorded: `with record() as step: ...`, then `step.replay()`.

    Tensors may be allocated, viewed and sliced within it, by torch. Launches of other threads are not recorded.

    Args:
        torch_operations: Also record what torch computes; else it is an error.

    Raises:
        TritonOnCpuError: `install` was not called; launches are checked, or recorded already; torch computes
            while only launches are recorded.
    """
    driver = active_driver()
    if driver.checked:
        raise TritonOnCpuError("Checked launches cannot be recorded: leave `checked()`, or install(checked=False).")
    if driver.of_thread.recording is not None:
        raise TritonOnCpuError("Launches are being recorded already; one recording at a time.")
    recording = driver.of_thread.recording = Recording()
    try:
        with _Operations(recording, torch_operations):
            yield recording
    finally:
        driver.of_thread.recording = None
