"""Compile every production kernel for GPUs this machine does not have, and report on the compiled code.

    python -m tests.kernels.aot [--target sm_90] [--kernel REGEX]

A stand-in driver claims to be the target and launches nothing, so the real wrappers run, on tensors without storage,
through Triton's real specialisation: the compiled code is the code that a GPU would run. The report shows faults that
correct results hide: register spills, scalar loads, an idle matrix unit, a loop without the K/V buffers that hide
memory latency. Exit status 1: some kernel has a problem, named below its row.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptx_emulator import CompilingProcess, compiled_code
from ptx_emulator.targets import TARGETS, CompileOnlyDriver, require_compiler
from tests.kernels import assembly
from tests.kernels.production import AotConfig, production_configs
from twophase_kernels._triton import triton


@dataclass(frozen=True)
class CompiledReport:
    """Figures of the compiled code of one kernel in one configuration for one target."""

    kernel: str
    config: str
    target: str
    is_streaming: bool  # it loops over tiles of keys, or of a weight's columns
    num_warps: int
    num_stages: int
    registers: int  # per thread
    spill_bytes: int  # of registers per thread (CUDA: STACK, AMD: scratch)
    shared_bytes: int  # per program
    matrix_instructions: tuple[str, ...]  # the kinds that occur: wgmma, mma.sync, tcgen05, v_mfma
    async_copies: tuple[str, ...]  # the kinds that occur: cp.async (16 bytes each; Ampere on), tma (Hopper on)
    vector_loads: int  # global loads, asynchronous or not, of 16 bytes per thread
    kv_buffers: int  # tiles of K and V, or of a weight and x, under way while one is worked on (see `kv_buffer_depth`)
    loop_instructions: int  # a warp's, per tile (see `loop_instructions`); 0 without such a loop, and for AMD
    block_n: int  # keys, or columns of a weight, per tile; 0 without
    dot_dtype: str | None  # the operands of matrix products: bf16, f16, f32, or None
    early_reads: tuple[str, ...]  # accumulators that are read before their products have ended (see `early_reads`)
    keeps_subnormals: bool  # fp32 subnormals are not flushed to zero by a multiply; `decode_e4m3` relies on it

    @property
    def instructions_per_key(self) -> float | None:
        """A warp's instructions per key in the loop over tiles; None without such a loop."""
        return self.loop_instructions / self.block_n if self.block_n and self.loop_instructions else None

    def problems(self) -> list[str]:
        """Faults that a production kernel must not have."""
        found = []
        if self.spill_bytes:
            found.append(f"spills {self.spill_bytes} bytes per thread")
        if self.early_reads:
            found.append(f"reads {self.early_reads[0]} before a product has ended (triton#10821)")
        if not self.keeps_subnormals:
            found.append("flushes fp32 subnormals")
        if not self.is_streaming:
            return found
        if self.dot_dtype == "f32" and self.matrix_instructions and TARGETS[self.target].backend == "cuda":
            found.append("fp32 products in TF32")
        # NVIDIA's matrix units have no fp32, and TF32 would lose 13 bits.
        if not self.matrix_instructions and self.dot_dtype != "f32":
            found.append("no matrix instructions")
        if TARGETS[self.target].has_async_copies and not self.async_copies:
            found.append("no 16-byte asynchronous copies")
        if self.kv_buffers < 2:
            found.append(f"K/V buffers: {self.kv_buffers}, at least 2 hide the latency of memory")
        return found


def compile_configs(target_name: str, configs: Iterable[AotConfig]) -> list[CompiledReport]:
    """Compile all kernels that `configs` launch, each distinct binary once. Replaces this process's Triton driver.

    Raises:
        KernelsUnavailableError: Triton is missing, or this process runs the interpreter.
        RuntimeError: a kernel came from Triton's disk cache, which may be stale; use a fresh TRITON_CACHE_DIR.
    """
    require_compiler()
    triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS[target_name]))
    reports: list[CompiledReport] = []
    for config in configs:

        def report(
            *, src: Any, metadata: dict, metadata_group: dict, cache_hit: bool, config: AotConfig = config, **_: Any
        ) -> None:
            if cache_hit:
                raise RuntimeError(f"{src.name} came from Triton's cache; set TRITON_CACHE_DIR to an empty folder.")
            reports.append(_inspect(src, metadata, metadata_group, target_name, config))

        triton.knobs.compilation.listener = report
        try:
            config.launch()
        finally:
            triton.knobs.compilation.listener = None
    return reports


def _inspect(source: Any, metadata: dict, files: dict[str, str], target_name: str, config: AotConfig) -> CompiledReport:
    constants = {source.fn.arg_names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
    by_stage = {Path(path).suffix[1:]: Path(path) for path in files.values()}
    is_amd = "amdgcn" in by_stage
    code = by_stage["amdgcn" if is_amd else "ptx"].read_text()
    dot_dtype, ttgir = assembly.dot_dtype(by_stage["ttir"].read_text()), by_stage["ttgir"].read_text()
    registers, spill_bytes = assembly.resources_amd(code) if is_amd else compiled_code.resources_cuda(by_stage["cubin"])
    return CompiledReport(
        kernel=source.name,
        config=config.name,
        target=target_name,
        is_streaming=source.name in config.streaming_kernels,
        num_warps=metadata["num_warps"],
        num_stages=metadata["num_stages"],
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=metadata["shared"],
        matrix_instructions=assembly.kinds_in(code, assembly.MATRIX_INSTRUCTIONS),
        async_copies=assembly.kinds_in(code, assembly.ASYNC_COPIES),
        vector_loads=len(re.findall(assembly.VECTOR_LOADS, code)),
        kv_buffers=assembly.kv_buffer_depth(ttgir),
        # Reading machine code takes longer than compiling a small kernel, and there is no such loop without products.
        loop_instructions=0
        if is_amd or dot_dtype is None
        else assembly.loop_instructions(compiled_code.sass_cuda(by_stage["cubin"])),
        block_n=constants.get("BLOCK_N") or constants.get("BLOCK_I", 0),
        dot_dtype=dot_dtype,
        early_reads=tuple(assembly.early_reads(ttgir)),
        keeps_subnormals=re.search(assembly.FLUSHES_SUBNORMALS, code) is None,
    )


def compile_beside(targets: Sequence[str], pattern: str = "") -> list[CompiledReport]:
    """`compile_configs` in a process without the interpreter and with an empty kernel cache.

    Args:
        targets: Keys of `TARGETS`.
        pattern: Only configurations with a match of this regular expression in 'module: name'.
    """
    with CompilingProcess() as process:
        return process.call(_compile_here, targets, pattern)


def _compile_here(targets: Sequence[str], pattern: str) -> list[CompiledReport]:
    configs = [
        config
        for module, configs in production_configs().items()
        for config in configs
        if re.search(pattern, f"{module}: {config.name}")
    ]
    return [report for target in targets for report in compile_configs(target, configs)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.kernels.aot", description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable; all of them by default")
    parser.add_argument("--kernel", default="", metavar="REGEX", help="only configurations matching 'module: name'")
    args = parser.parse_args()
    reports = compile_beside(args.target or list(TARGETS), args.kernel)
    for report in reports:
        fields = dataclasses.asdict(report)
        print(*(fields.pop(name) for name in ("target", "kernel", "config")), sep=", ")
        print("   ", ", ".join(f"{name} {value}" for name, value in fields.items()))
        for problem in report.problems():
            print(f"        ^ {problem}")
    if any(report.problems() for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    from tests.kernels import aot  # a function of __main__ cannot be called in another process

    aot.main()
