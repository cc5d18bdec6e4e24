"""Launches recorded once and repeated by one call of C, as a CUDA graph repeats them: same kernels, same buffers."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from triton_on_cpu.checks import Job, Launch
from triton_on_cpu.driver import active_driver
from triton_on_cpu.errors import TritonOnCpuError
from triton_on_cpu.launch import HEAD
from triton_on_cpu.pool import num_threads, pool

ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


class Recording:
    """A list of launches, each with the addresses and values of its arguments.

    The tensors are kept alive. A replay reads and writes the same memory: write new inputs into the same tensors, in
    place. Grids and scalars stay as recorded.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._kept: list[Any] = []
        self._packed: ctypes.Array[Job] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, launcher: Any, packed: bytes, values: tuple[Any, ...]) -> None:
        """A launch, as launch.py packs it for pool.c."""
        function, x, y, z, _, number = HEAD.unpack_from(packed)
        words = ctypes.create_string_buffer(packed[HEAD.size :], 8 * number or 8)
        begin = ctypes.addressof(words)
        args = (ctypes.c_void_p * max(number, 1))(*[begin + 8 * i for i in range(number)])
        launch = Launch((x, y, z), number, None, None, None)
        self._jobs.append(Job(function, ctypes.addressof(launch), ctypes.addressof(args)))
        self._kept.append((launcher, words, args, launch, values))
        self._packed = None

    def replay(self) -> None:
        """All launches again, in order, without Python between them; a launch begins when the one before has ended."""
        if self._packed is None:
            self._packed = (Job * len(self._jobs))(*self._jobs)
        pool().pool_run(ctypes.addressof(self._packed), len(self._jobs), num_threads())


class _KernelsOnly(TorchDispatchMode):
    """Refuses operations of torch: a replay would leave them out, and go on with old contents of their results."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if name not in ALLOCATIONS and not function.is_view and name != "aten::detach":
            raise TritonOnCpuError(
                f"torch computes {name.removeprefix('aten::')} while launches are recorded. A replay repeats kernels "
                "only: compute it before `record()`, after it, or by a kernel."
            )
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Within it launches run as always, and are recorded: `with record() as step: ...`, then `step.replay()`.

    Tensors may be allocated, viewed and sliced within it, by torch.

    Raises:
        TritonOnCpuError: `install` was not called; launches are checked, or recorded already; torch computes something.
    """
    driver = active_driver()
    if driver.checked:
        raise TritonOnCpuError("Checked launches cannot be recorded: leave `checked()`, or install(checked=False).")
    if driver.recording is not None:
        raise TritonOnCpuError("Launches are being recorded already; one recording at a time.")
    driver.recording = Recording()
    try:
        with _KernelsOnly():
            yield driver.recording
    finally:
        driver.recording = None
