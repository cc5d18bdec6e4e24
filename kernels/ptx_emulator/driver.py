"""Stands where Triton's CUDA driver would: kernels are compiled as for that GPU, and launches run in the emulator.

So the real wrappers run, on CPU tensors, through Triton's real specialisation and its real compiler.
"""

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ptx_emulator.bulk import ELEMENT_BYTES, MAP_BYTES, TENSOR_MAP
from ptx_emulator.errors import NotCoveredError
from ptx_emulator.machine import Machine
from ptx_emulator.memory import GlobalMemory
from ptx_emulator.ptx import parse
from ptx_emulator.state import Observer
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
from ptx_emulator.unwritten import UnwrittenMemory
from twophase_kernels._triton import KernelsUnavailableError, mode, triton

COVERED_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90")  # sm_100's tcgen05 and AMD's instructions are not


class Launched(NamedTuple):
    """A kernel as it was compiled, the grid of its latest launch, and the machine that ran it, with its counts.

    metadata: Triton's: name, num_warps, num_stages, shared, hash.
    """

    metadata: Any
    grid: tuple[int, int, int]
    machine: Machine

    def file(self, kind: str) -> Path:
        """A product of the compiler: 'ptx', and 'cubin' if machine code was asked for."""
        return compiled_file(self.metadata, kind)


class EmulatingDriver(CompileOnlyDriver):
    """Compiles for `target_name` and executes the compiled code.

    Attributes:
        launched: The latest specialisation of each kernel so far, by name.
        written: Of storages that hold bytes which nobody wrote: by data_ptr(), a bool per byte.
    """

    is_emulated = True

    def __init__(
        self,
        target_name: str,
        edit: Callable[[str], str] | None = None,
        observer: Observer | None = None,
        seed: int | None = None,
    ) -> None:
        if target_name not in COVERED_TARGETS:
            raise ValueError(f"the emulator covers {', '.join(COVERED_TARGETS)}; got {target_name!r}")
        super().__init__(TARGETS[target_name])
        self.launched: dict[str, Launched] = {}
        self.written: dict[int, np.ndarray] = {}
        self._edit = edit or (lambda ptx: ptx)
        self._observer, self._seed = observer, seed

    def get_current_device(self) -> str:
        # Triton keeps compiled kernels, with their launchers, per device: this driver is a device of its own.
        return f"emulator:{self.target.arch}:{id(self)}"

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        program = parse(self._edit(with_injected_waits(compiled_file(metadata, "ptx").read_text())))
        machine = Machine(program, observer=self._observer, seed=self._seed)
        names = [name for name, kind in source.signature.items() if kind != "constexpr"]
        places = [source.fn.arg_names.index(name) for name in names]

        def launch(*words: Any) -> None:
            grid, values = words[:3], words[9:]
            memory = GlobalMemory(machine.granule("global"), self.written)
            maps = iter(metadata.tensordesc_meta or ())
            parameters: list[int] = []
            for place, name in zip(places, names, strict=True):
                if source.signature[name].startswith("tensordesc"):
                    parameters += _tensor_map(values[place], next(maps), name, memory)
                else:
                    parameters.append(_bits(values[place], source.signature[name], name, memory))
            scratch = _aligned(metadata.global_scratch_size * grid[0] * grid[1] * grid[2])
            parameters.append(memory.address_of(scratch, "scratch"))
            self.launches += 1
            self.launched[metadata.name] = Launched(metadata, grid, machine)
            machine.launch(grid, parameters, memory, metadata.shared)

        return launch


def with_injected_waits(ptx: str) -> str:
    """What ptxas assembles: it waits where a thread uses the sums of a product that no group holds yet (its C7517).

    Triton writes so when it adds fp8 products to fp32 sums (max_num_imprecise_acc).
    """
    lines, sums = [], set[str]()
    for line in ptx.split("\n"):
        used = set(re.findall(r"%r\d+", line))
        if "wgmma.mma_async" in line:
            sums |= set(re.findall(r"%r\d+", line.partition("}")[0]))
        elif "wgmma.commit_group" in line:
            sums.clear()
        elif sums & used:
            lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
            sums.clear()
        lines.append(line)
    return "\n".join(lines)


def compiled_file(metadata: Any, kind: str) -> Path:
    from triton.runtime.cache import get_cache_manager

    files = get_cache_manager(metadata.hash).get_group(f"{metadata.name[:150]}.json") or {}
    path = next((path for name, path in files.items() if name.endswith(f".{kind}")), None)
    if path is None:
        raise KernelsUnavailableError(f"Triton's cache has no {kind} of {metadata.name}")
    return Path(path)


def _aligned(num_bytes: int) -> torch.Tensor:
    """Memory that nobody has written, at a multiple of 128 bytes."""
    room = torch.empty(num_bytes + MAP_BYTES, dtype=torch.uint8)
    return room[-room.data_ptr() % MAP_BYTES :]


def _tensor_map(value: Any, meta: dict[str, Any], name: str, memory: GlobalMemory) -> list[int]:
    """The parameters of a TensorDescriptor: the address of its map, its shape and its strides."""
    if value.padding != "zero":
        raise NotCoveredError(f"a tensor descriptor that fills with {value.padding}: {name}")
    fields = np.zeros(1, TENSOR_MAP)
    rank, size = len(value.shape), meta["elem_size"]
    fields["global_address"], fields["rank"] = memory.address_of(value.base, name), rank - 1
    fields["elemtype"], fields["swizzle_mode"] = ELEMENT_BYTES.index(size), meta["swizzle"]
    fields["box_dim"][0, :rank], fields["global_dim"][0, :rank] = meta["block_size"][::-1], value.shape[::-1]
    fields["element_stride"], fields["global_stride"][0, : rank - 1] = 1, [s * size for s in value.strides[-2::-1]]
    place = _aligned(MAP_BYTES)[:MAP_BYTES].zero_()
    place[: TENSOR_MAP.itemsize] = torch.from_numpy(fields.view(np.uint8))
    return [memory.address_of(place, f"map of {name}"), *value.shape, *value.strides]


def _bits(value: Any, kind: str, name: str, memory: GlobalMemory) -> int:
    """An argument as the bits of its parameter."""
    if kind.startswith("*"):
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            raise ValueError(f"{name}: the emulator takes tensors on the CPU, got {value!r:.80}")
        return memory.address_of(value, name)
    if kind == "fp32":
        return int.from_bytes(struct.pack("<f", value), "little")
    if kind == "fp64":
        return int.from_bytes(struct.pack("<d", value), "little")
    if kind[0] in "iu":
        return int(value)
    raise NotCoveredError(f"an argument of type {kind}: {name}")


def _without_machine_code(*compilation: Any) -> tuple[str, str] | None:
    """Triton asks for a part of its cache keys, or gives (backend, stages, ...) of a compilation."""
    if not compilation:
        return "without machine code", "without machine code"
    compilation[1]["cubin"] = lambda ptx, metadata: b""
    return None


@contextlib.contextmanager
def emulated(
    target: str = "sm_90",
    edit: Callable[[str], str] | None = None,
    observer: Observer | None = None,
    machine_code: bool = False,
    seed: int | None = None,
) -> Iterator[EmulatingDriver]:
    """Within it, Triton kernels given CPU tensors are compiled for `target` and executed by the emulator.

    Args:
        edit: Changes each kernel's PTX before it is executed, to see the effect of a missing barrier, for example.
        observer, seed: As of `Machine`.
        machine_code: Also assemble the PTX, which takes longer than all before it and is not needed to run it.

    Raises:
        KernelsUnavailableError: This process was started for Triton's interpreter, or there is no Triton.
        ValueError: A target that is not covered.
    """
    driver = EmulatingDriver(target, edit, observer, seed)
    before, stages = triton.runtime.driver._active, triton.knobs.runtime.add_stages_inspection_hook
    triton.runtime.driver.set_active(driver)
    triton.knobs.runtime.add_stages_inspection_hook = stages if machine_code else _without_machine_code
    try:
        if mode() != "emulated":
            raise KernelsUnavailableError(
                "This process runs kernels in the interpreter; the emulator needs one started without TRITON_INTERPRET."
            )
        with UnwrittenMemory(driver.written):
            yield driver
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = stages
        triton.runtime.driver.set_active(before)  # None: whatever there is, when next asked for


def emulate(
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    target: str = "sm_90",
    *,
    seed: int | None = None,
    **options: Any,
) -> Machine:
    """Compile `kernel` for `target` and run it over `grid`: `kernel[grid](*args, **options)`, emulated.

    Tensors lie on the CPU and are changed in place. `seed` is as of `Machine`. Returns the machine, for its counts.

    Raises:
        EmulationError: An access that is a fault or undefined on a GPU, with the line of Python.
        KernelsUnavailableError: As `emulated`.
    """
    with emulated(target, seed=seed) as driver:
        kernel[grid](*args, **options)
    return next(iter(driver.launched.values())).machine
