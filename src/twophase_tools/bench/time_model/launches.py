"""What a case of `bench kernels` launches: wrappers run on tensors without storage, and Triton compiles for sm_90."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ptx_emulator import compiled_code
from ptx_emulator.driver import compiled_file
from ptx_emulator.occupancy import MULTIPROCESSORS, occupancy
from ptx_emulator.targets import TARGETS, CompileOnlyDriver, require_compiler
from twophase_kernels._triton import triton
from twophase_tools.bench.kernel_cases import FULL, CaseTable, KernelCase
from twophase_tools.bench.kernel_variants import OURS
from twophase_tools.bench.time_model.machine_code import MachineCode, read_code


@dataclass(frozen=True)
class Launch:
    """One kernel of a call. `programs_per_sm` at once; `arguments` by the names that the kernel gives them."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    code: MachineCode
    num_warps: int
    num_stages: int
    registers: int
    shared_bytes: int
    programs_per_sm: int


class RecordingDriver(CompileOnlyDriver):
    """Stands for a GPU of so many multiprocessors, and keeps what would have been launched."""

    def __init__(self, num_multiprocessors: int) -> None:
        super().__init__(TARGETS["sm_90"])
        self.num_multiprocessors = num_multiprocessors
        self.recorded: list[Launch] = []

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(*words: Any) -> None:
            code, registers = _read(compiled_file(metadata, "cubin"))
            arguments = dict(zip(source.fn.arg_names, words[9:], strict=False))
            fit = occupancy(MULTIPROCESSORS["H100"], metadata.num_warps, registers, metadata.shared).blocks
            sizes = metadata.num_warps, metadata.num_stages, registers, metadata.shared, fit
            self.recorded.append(Launch(metadata.name, words[:3], arguments, code, *sizes))

        return launch


@lru_cache
def _read(cubin: Path) -> tuple[MachineCode, int]:
    return read_code(compiled_code.sass_cuda(cubin)), compiled_code.resources_cuda(cubin)[0]


def recorded_cases(num_sms: int, pattern: str) -> Iterator[tuple[KernelCase, list[Launch]]]:
    """Each case whose 'kernel label' has a match of the regular expression, and what it launches on a Hopper GPU.

    Replaces this process's Triton driver. Raises KernelsUnavailableError in a process that interprets kernels.
    """
    require_compiler()
    driver = RecordingDriver(num_sms)
    triton.runtime.driver.set_active(driver)
    for case in CaseTable(FULL, torch.bfloat16, torch.device("meta")):
        if re.search(pattern, f"{case.kernel} {case.label}"):
            driver.recorded = []
            case.make_variants()[OURS]().call()
            yield case, driver.recorded
