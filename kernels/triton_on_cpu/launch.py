"""From a launch's Python values to one call of C: as little as possible between Triton's `run` and the kernel."""

import ctypes
import struct
import time
from collections.abc import Callable
from typing import Any

from triton_on_cpu.checks import run_checked
from triton_on_cpu.compile import load
from triton_on_cpu.errors import CompilerError, TritonOnCpuError
from triton_on_cpu.pool import num_threads, pool

MAX_PROGRAMS = 2**31 - 1
HEAD = "<Q4i24x"  # of `launch` in runtime.h: function, grid, number of arguments, room for a checked launch's pointers
# Each argument takes eight bytes. The names are from Triton's signatures.
FORMATS = {"fp32": "f4x", "fp64": "d", "fp16": "e6x", "i1": "?7x", "u1": "?7x", "u64": "Q"}


class Launcher:
    """A compiled kernel, as Triton calls it.

    Attributes:
        metadata: Triton's: name, hash, `checked`, and `arguments` and `sites` of generate.py.
        places: For each argument of the C function, its place among the Python function's parameters, and whether it
            is a tensor.
        file: Where the Python function stands.
    """

    def __init__(self, driver: Any, source: Any, metadata: Any) -> None:
        self.driver, self.metadata, self.file = driver, metadata, source.fn.fn.__code__.co_filename
        kinds = {name: source.signature.get(name) for name in metadata.arguments}
        if unknown := [name for name, kind in kinds.items() if not isinstance(kind, str)]:
            raise TritonOnCpuError(f"{metadata.name}: tuples are not supported as arguments ({', '.join(unknown)})")
        self.places = [(source.fn.arg_names.index(name), kind.startswith("*")) for name, kind in kinds.items()]
        self._tensors = [place for place, is_tensor in self.places if is_tensor]
        formats = ["Q" if kind.startswith("*") else FORMATS.get(kind, "q") for kind in kinds.values()]
        self._pack = struct.Struct("".join((HEAD, *formats))).pack
        self.kernel = _load(metadata)
        self.function = ctypes.cast(self.kernel.run_programs, ctypes.c_void_p).value
        self._launch = pool().pool_launch

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, launch_metadata: Any,
        enter_hook: Callable[[Any], None] | None, exit_hook: Callable[[Any], None] | None, *values: Any,
    ) -> None:  # fmt: skip
        if enter_hook is not None:
            enter_hook(launch_metadata)
        for place in self._tensors:
            if not getattr(values[place], "is_cpu", False):
                self._refuse_device(place, values[place])
        if not 0 < x * y * z <= MAX_PROGRAMS or x < 0 or y < 0:
            if min(x, y, z) == 0 and max(x, y, z) <= MAX_PROGRAMS:
                return
            raise ValueError(f"{self.metadata.name}: the grid {(x, y, z)} must have 0 to {MAX_PROGRAMS} programs")
        arguments = [values[place].data_ptr() if is_tensor else values[place] for place, is_tensor in self.places]
        try:
            packed = self._pack(self.function, x, y, z, len(arguments), *arguments)
        except struct.error:
            if not any(isinstance(size, float) for size in (x, y, z)):
                raise
            raise ValueError(
                f"{self.metadata.name}: the grid {(x, y, z)} must be of integers: triton.cdiv(n, BLOCK), not n / BLOCK"
            ) from None
        if self.metadata.checked:
            run_checked(self, (x, y, z), packed, values)
        else:
            self._launch(packed, num_threads())
            recording = self.driver.of_thread.recording
            if recording is not None:
                recording.add(self, packed, values)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _refuse_device(self, place: int, value: Any) -> None:
        if getattr(getattr(value, "base", None), "is_cpu", False):  # of triton.reinterpret
            return
        name = self.metadata.arguments[self.places.index((place, True))]
        where = f"a tensor on {value.device}" if hasattr(value, "device") else f"{value!r:.80}"
        raise ValueError(
            f"{name} of {self.metadata.name} must be a tensor on the CPU, where this process runs kernels; got {where}."
        )


def _load(metadata: Any) -> ctypes.CDLL:
    from triton.runtime.cache import get_cache_manager

    files = get_cache_manager(metadata.hash).get_group(f"{metadata.name[:150]}.json") or {}
    path = next((path for name, path in files.items() if name.endswith(".so")), None)
    if path is None:
        raise CompilerError(f"Triton's cache has lost {metadata.name} since it was compiled. Start Python again.")
    return load(path, metadata.name, files.values())


class Clock:
    """The part of torch.cuda that `triton.testing.do_bench` uses.

    A launch has ended when it returns, so an event is a time.
    """

    class Event:
        def __init__(self, enable_timing: bool = True) -> None:
            self.time_s = 0.0

        def record(self) -> None:
            self.time_s = time.perf_counter()

        def elapsed_time(self, later: "Clock.Event") -> float:
            """In milliseconds, as of torch's events."""
            return (later.time_s - self.time_s) * 1e3

    @staticmethod
    def synchronize() -> None:
        """Nothing is under way."""
