"""Counts instructions and memory requests of a kernel's compiled code while the emulator runs it.

    report = inspect_kernel(kernel, grid, args, target="sm_90", BLOCK=128)
    report.show()

`inspect_call(function, ...)` does so for the kernel that a wrapper launches. In a process that interprets kernels (a
notebook, the tests) it takes a `CompilingProcess`: `inspect_in(process, kernel, grid, args, ...)`, or
`process.call(inspect_call, function, ...)`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ptx_emulator import compiled_code
from ptx_emulator.driver import emulated
from ptx_emulator.kernel_source import KernelSource, kernel_source
from ptx_emulator.occupancy import MULTIPROCESSORS, Occupancy, occupancy
from ptx_emulator.process import CompilingProcess
from ptx_emulator.traffic import GlobalAccess, SharedAccess, Traffic

__all__ = ["GlobalAccess", "KernelReport", "SharedAccess", "inspect_call", "inspect_in", "inspect_kernel"]


GLOBAL_HEADING = "global memory                instruction                thread  requests  sectors  least  used"
GLOBAL_ROW = (
    "{0.source:<28} {0.instruction:<26} {0.thread_bytes:>4} B {0.requests:>9,} {0.sectors_per_request:>8.1f} "
    "{0.least_per_request:>6.1f} {0.efficiency:>5.0%}"
)
SHARED_HEADING = "shared memory                instruction                thread  requests wavefronts conflicts"
SHARED_ROW = (
    "{0.source:<28} {0.instruction:<26} {0.thread_bytes:>4} B {0.requests:>9,} {0.wavefronts:>10,} {0.conflicts:>9,}"
)


@dataclass(frozen=True)
class KernelReport:
    """One launch of one kernel.

    Attributes:
        grid: Programs along x, y, z.
        num_warps, num_stages: As Triton compiled them.
        registers, stack_bytes: Per thread; the stack holds spilled registers.
        shared_bytes: Per program.
        bytes_in_flight: The largest number of bytes in flight by cp.async in one program.
        matrix_flops: All programs' FLOPs by mma and wgmma.
        executed: PTX instructions by name, counted once per warp, over all programs.
        loop: The main loop in machine code (SASS): instructions by name, issued by one warp per pass through the loop.
            If several loops have matrix products, the shortest, which needs no mask. Empty: no such loop.
    """

    kernel: str
    target: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    bytes_in_flight: int
    matrix_flops: int
    global_accesses: tuple[GlobalAccess, ...]
    shared_accesses: tuple[SharedAccess, ...]
    executed: dict[str, int]
    loop: dict[str, int]

    @property
    def loop_instructions(self) -> int:
        return sum(self.loop.values())

    @property
    def bytes_moved(self) -> int:
        """Between the SMs and the L2 cache: whole sectors, each request's anew."""
        return sum(access.bytes_moved for access in self.global_accesses)

    @property
    def bytes_asked(self) -> int:
        return sum(access.bytes_asked for access in self.global_accesses)

    @property
    def conflicts(self) -> int:
        """Wavefronts of shared memory too many."""
        return sum(access.conflicts for access in self.shared_accesses)

    def occupancy(self, card: str) -> Occupancy:
        """On a card of `MULTIPROCESSORS`, as if the code compiled for it took the same registers and shared memory.

        Raises:
            ValueError: A card that is not known here.
        """
        if card not in MULTIPROCESSORS:
            raise ValueError(f"the cards known here are {', '.join(MULTIPROCESSORS)}; got {card!r}")
        return occupancy(MULTIPROCESSORS[card], self.num_warps, self.registers, self.shared_bytes)

    def show(self) -> str:
        """A table, printed."""
        lines = self._resources()
        for heading, row, accesses in (
            (GLOBAL_HEADING, GLOBAL_ROW, self.global_accesses),
            (SHARED_HEADING, SHARED_ROW, self.shared_accesses),
        ):
            if accesses:
                lines += ["", heading, *(row.format(access) for access in accesses)]
        text = "\n".join(lines)
        print(text)
        return text

    def _resources(self) -> list[str]:
        mix = ", ".join(f"{count} {name}" for name, count in Counter(self.loop).most_common(8))
        loop = f"{self.loop_instructions:,} instructions a turn and warp: {mix}, ..." if self.loop else "none"
        lines = [
            f"{self.kernel} for {self.target}: {self.grid} programs of {self.num_warps} warps",
            f"  registers {self.registers} a thread, {self.stack_bytes} bytes of stack; shared memory "
            f"{self.shared_bytes:,} bytes, {self.bytes_in_flight:,} bytes in flight at most",
            f"  loop with matrix products: {loop}",
        ]
        for card in MULTIPROCESSORS:
            found = self.occupancy(card)
            lines.append(
                f"  {card:<8} {found.blocks:2} programs, {found.warps} of {found.max_warps} warps per SM; limited by "
                f"{found.limited_by}"
            )
        return lines


def inspect_kernel(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], target: str = "sm_90", **options: Any
) -> KernelReport:
    """Compile `kernel` for `target`, run `kernel[grid](*args, **options)` in the emulator, and count.

    Tensors lie on the CPU and are changed in place.

    Raises:
        EmulationError: As `emulate`: a fault or undefined behaviour on a GPU, with the line of Python.
        KernelsUnavailableError: This process runs kernels in the interpreter (`inspect_in` helps), or has no Triton.
        ValueError: A target that the emulator does not cover.
    """
    return inspect_call(_launch, kernel, grid, args, options, target=target)


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    kernel[grid](*args, **options)


def inspect_call(function: Callable[..., Any], *args: Any, target: str = "sm_90", **options: Any) -> KernelReport:
    """As `inspect_kernel`, of the one kernel that `function(*args, **options)` launches: a wrapper's, as it chooses.

    Raises:
        ValueError: also if it launches none, or several.
    """
    traffic = Traffic()
    with emulated(target, observer=traffic, machine_code=True) as driver:
        function(*args, **options)
    if driver.launches != 1:
        raise ValueError(f"{function.__name__} launches {driver.launches} kernels; one at a time can be inspected")
    (launched,) = driver.launched.values()
    metadata = launched.metadata
    registers, stack_bytes = compiled_code.resources_cuda(launched.file("cubin"))
    loop = min(compiled_code.matrix_loops(compiled_code.sass_cuda(launched.file("cubin"))), key=len, default=[])
    return KernelReport(
        kernel=metadata.name,
        target=target,
        grid=launched.grid,
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        registers=registers,
        stack_bytes=stack_bytes,
        shared_bytes=metadata.shared,
        bytes_in_flight=traffic.bytes_in_flight,
        matrix_flops=traffic.matrix_flops,
        global_accesses=traffic.global_accesses,
        shared_accesses=traffic.shared_accesses,
        executed=dict(launched.machine.executed),
        loop=dict(Counter(_opcode(instruction) for instruction in loop)),
    )


def inspect_in(
    process: CompilingProcess,
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    target: str = "sm_90",
    **options: Any,
) -> KernelReport:
    """`inspect_kernel` in a process that compiles, of a kernel from any place; `args` are filled in here, too.

    Raises:
        ValueError: also if the kernel's text is not known, or uses names that cannot travel.
    """
    report, tensors = process.call(_inspect_there, kernel_source(kernel), grid, args, target, options)
    for mine, theirs in zip(_tensors(args), tensors, strict=True):
        mine.copy_(theirs)
    return report


def _inspect_there(
    source: KernelSource, grid: tuple[int, ...], args: tuple[Any, ...], target: str, options: dict[str, Any]
) -> tuple[KernelReport, list[torch.Tensor]]:
    return inspect_kernel(source.load(), grid, args, target, **options), _tensors(args)


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def _opcode(instruction: str) -> str:
    """'LDS' of '@!P0 LDS.128 R4, [R2]'."""
    words = instruction.split()
    return (words[1] if words[0].startswith("@") else words[0]).partition(".")[0]
