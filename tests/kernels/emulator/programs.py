"""Small PTX programs, written by hand, with their registers set before and read after."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from ptx_emulator import machine, memory, ptx, state

PTX = """
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_1
)
.reqntid {threads}
{{
	.reg .pred 	%p<99>;
	.reg .b16 	%rs<99>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;

{lines}
	ret;
}}
"""
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def text_of(lines: str, threads: int = 32) -> str:
    return PTX.format(lines="\n".join("\t" + line for line in lines.strip().split("\n")), threads=threads)


def run(
    lines: str,
    registers: dict[str, object] | None = None,
    *,
    threads: int = 32,
    blocks: int = 1,
    shared_bytes: int = 0,
    shared: np.ndarray | None = None,
    outside: memory.GlobalMemory | None = None,
    parameters: dict[str, int] | None = None,
    module: ModuleType = machine,
    seed: int | None = None,
) -> dict[str, np.ndarray]:
    """The registers after a program of these lines, run by all threads of some blocks.

    Args:
        registers: What they hold at first, an entry per thread (or one for all): arrays of their width, or bool.
        outside: Global memory; none by default.
        shared: uint8 [blocks, shared_bytes], what shared memory holds at first.
        module: A module of the emulator, perhaps with a bug planted, whose parts stand for the real ones.
    """
    program = ptx.parse(text_of(lines, threads))
    builders = machine.BUILDERS | getattr(module, "BUILDERS", {})
    runner = machine.Machine(program, builders, seed=seed)
    inside = getattr(module, "SharedMemory", memory.SharedMemory)(blocks, shared_bytes, runner.granule(), threads // 32)
    if shared is not None:
        inside.bytes.reshape(blocks, -1)[:, :shared_bytes] = shared
    ids = np.stack([np.arange(blocks), np.zeros(blocks, int), np.zeros(blocks, int)], 1)
    lanes = getattr(module, "State", state.State)(
        program, ids, (blocks, 1, 1), parameters or {}, outside or memory.GlobalMemory(), inside
    )
    for name, values in (registers or {}).items():
        array = np.asarray(values)
        array = array if array.dtype == bool else array.view(UNSIGNED[array.itemsize])
        lanes.registers[name] = np.array(np.broadcast_to(array, lanes.num_lanes))
    runner.run(lanes)
    lanes.registers["executed"] = runner.executed
    return lanes.registers


def global_memory(module: ModuleType) -> memory.GlobalMemory:
    return getattr(module, "GlobalMemory", memory.GlobalMemory)()


def tiled(values: list[object], dtype: type, count: int = 32) -> np.ndarray:
    """The values over and over, `count` of them."""
    return np.resize(np.array(values, dtype), count)


def checks_of(names: dict[str, object]) -> list[Callable[[ModuleType], None]]:
    """A file's checks of a module of the emulator, perhaps with a bug planted."""
    return [check for name, check in names.items() if name.startswith("check_")]


def each_of(checks: list[Callable[[ModuleType], None]], module: ModuleType) -> Callable[..., None]:
    """A test that the module passes each of the checks."""

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__.removeprefix("check_"))
    def test(check: Callable[[ModuleType], None]) -> None:
        check(module)

    return test
