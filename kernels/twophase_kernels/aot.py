"""Compile every production kernel for GPUs this machine does not have, and say what the compiler made of it.

    python -m twophase_kernels.aot [--target sm_90] [--kernel REGEX] [--json]

A stand-in driver claims to be the target and launches nothing, so the real wrappers run, on tensors without storage,
through Triton's real specialisation: what is compiled here is what a GPU would run. It shows what correct results
hide: register spills, scalar loads, a matrix unit left idle, a loop without the K/V buffers that hide memory latency.
Exit status 1: some kernel has a problem, named below its row.
"""

import argparse
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase_kernels._triton import KernelsUnavailableError, mode, triton


@dataclass(frozen=True)
class AotConfig:
    """One way a wrapper is called in production. Each kernel's file lists its own in `production_configs()`.

    Attributes:
        name: Tells it from the module's other configurations, e.g. 'bf16 32/8/128 page 64'.
        launch: Calls the public wrapper on `device='meta'` tensors of production shapes, dtypes and strides.
        attention_kernels: Names of the `@triton.jit` functions it launches that loop over K/V tiles: they must use
            matrix instructions, asynchronous copies (where the target has them) and at least two K/V buffers.
    """

    name: str
    launch: Callable[[], object]
    attention_kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompiledReport:
    """What the compiler made of one kernel in one configuration for one target.

    Attributes:
        registers: Per thread.
        spill_bytes: Per-thread memory for what did not fit into registers (CUDA: STACK, AMD: scratch).
        shared_bytes: Shared memory (LDS) per program.
        matrix_instructions: Which occur: wgmma, mma.sync, tcgen05, v_mfma.
        async_copies: Which occur: cp.async (Ampere on; those of 16 bytes), tma (bulk tensor copies, Hopper on).
        vector_loads, narrow_loads: Global loads, asynchronous or not, of 16 bytes per thread, and of 4 or fewer.
        kv_buffers: Tiles of K, and of V, under way while one is worked on (see `kv_buffer_depth`).
        dot_dtype: What matrix products take: bf16, f16, f32, or None without any.
        keeps_subnormals: fp32 subnormals are not flushed to zero by a multiply; `decode_e4m3` relies on it.
        compile_s: Seconds.
    """

    kernel: str
    config: str
    target: str
    is_attention: bool
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix_instructions: tuple[str, ...]
    async_copies: tuple[str, ...]
    vector_loads: int
    narrow_loads: int
    kv_buffers: int
    dot_dtype: str | None
    keeps_subnormals: bool
    compile_s: float

    def problems(self) -> list[str]:
        """What a production kernel must not have; empty if all is well."""
        found = []
        if self.spill_bytes:
            found.append(f"spills {self.spill_bytes} bytes per thread")
        if not self.keeps_subnormals:
            found.append("flushes fp32 subnormals")
        if not self.is_attention:
            return found
        # NVIDIA's matrix units have no fp32, and TF32 would lose 13 bits.
        if not self.matrix_instructions and self.dot_dtype != "f32":
            found.append("no matrix instructions")
        if TARGETS[self.target].has_async_copies and not self.async_copies:
            found.append("no 16-byte asynchronous copies")
        if self.kv_buffers < 2:
            found.append(f"K/V buffers: {self.kv_buffers}, at least 2 hide the latency of memory")
        return found


@dataclass(frozen=True)
class Target:
    """A GPU to compile for: Triton's name for it, and what one program may use."""

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    has_async_copies: bool


# Shared memory per block: CUDA C++ Programming Guide, table 'Technical Specifications per Compute Capability'; LDS of a
# CDNA3 compute unit: AMD Instinct MI300 ISA guide.
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024, True),
    "sm_90": Target("cuda", 90, 32, 227 * 1024, True),
    "sm_100": Target("cuda", 100, 32, 227 * 1024, True),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024, False),
}

KERNEL_MODULES = (
    "kv_write",
    "rope_kv_write",
    "rmsnorm_residual",
    "silu_mul",
    "paged_decode",
    "paged_prefill",
    "merge_splits",
)

MATRIX_INSTRUCTIONS = {
    "wgmma": "wgmma.mma_async",
    "mma.sync": "mma.sync",
    "tcgen05": "tcgen05.mma",
    "v_mfma": "v_mfma_",
}
ASYNC_COPIES = {"cp.async": r"cp\.async\.cg\.", "tma": r"cp\.async\.bulk\.tensor"}
VECTOR_LOAD = (
    r"ld\.global\S*\.(?:v4\.[bfsu]32|v2\.[bfsu]64|v8\.[bfsu]16|b128)|cp\.async\.cg|(?:global|buffer)_load_dwordx4"
)
FLUSHES_SUBNORMALS = re.compile(r"mul(?:\.rn)?\.ftz\.f32|\.amdhsa_float_denorm_mode_32 [^3]")
DOT_OPERANDS = re.compile(r"tt\.dot .* : tensor<\d+x\d+x(\w+)>")
NARROW_LOAD = r"ld\.global(?!\S*\.v\d)\S*\.[bfsu](?:8|16|32)\b|cp\.async\.ca\S* \[.*?\], \[.*?\], 0x[24]\b|(?:global|buffer)_load_(?:[us]?byte|[us]?short|dword)\b"


class CompileOnlyDriver:
    """Stands where Triton's CUDA or HIP driver would; compiles for `target`, launches nothing.

    `launches` counts the kernel launches that it swallowed.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.launches = 0
        self.utils = self

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.target.backend, self.target.arch, self.target.warp_size)

    def get_current_device(self) -> str:
        # Triton keeps compiled kernels per device: each target is a device of its own.
        return f"{self.target.backend}:{self.target.arch}"

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_device_properties(self, device: str) -> dict[str, int]:
        return {"max_shared_mem": self.target.shared_bytes}

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: str) -> tuple[None, int, int, int, int]:
        """(module, function, registers, spills, most threads per program); not None where Triton tests for it."""
        return None, 0, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            self.launches += 1

        return launch


def require_compiler() -> None:
    """Raises KernelsUnavailableError if this process was started for the interpreter."""
    triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_90"]))
    if mode() != "compiled":
        raise KernelsUnavailableError(
            "This process runs kernels in the interpreter; compiling needs one started without TRITON_INTERPRET."
        )


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

        def report(*, src, metadata, metadata_group, times, cache_hit, config=config):  # type: ignore[no-untyped-def]
            if cache_hit:
                raise RuntimeError(f"{src.name} came from Triton's cache; set TRITON_CACHE_DIR to an empty folder.")
            compile_s = times.total / 1e6
            reports.append(_inspect(src.name, metadata, metadata_group, target_name, config, compile_s))

        triton.knobs.compilation.listener = report
        try:
            config.launch()
        finally:
            triton.knobs.compilation.listener = None
    return reports


def _inspect(
    kernel: str, metadata: dict, files: dict[str, str], target_name: str, config: AotConfig, compile_s: float
) -> CompiledReport:
    by_stage = {Path(path).suffix[1:]: Path(path) for path in files.values()}
    is_amd = "amdgcn" in by_stage
    assembly = by_stage["amdgcn" if is_amd else "ptx"].read_text()
    registers, spill_bytes = _resources_amd(assembly) if is_amd else _resources_cuda(by_stage["cubin"])
    return CompiledReport(
        kernel=kernel,
        config=config.name,
        target=target_name,
        is_attention=kernel in config.attention_kernels,
        num_warps=metadata["num_warps"],
        num_stages=metadata["num_stages"],
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=metadata["shared"],
        matrix_instructions=tuple(name for name, text in MATRIX_INSTRUCTIONS.items() if text in assembly),
        async_copies=tuple(name for name, pattern in ASYNC_COPIES.items() if re.search(pattern, assembly)),
        vector_loads=len(re.findall(VECTOR_LOAD, assembly)),
        narrow_loads=len(re.findall(NARROW_LOAD, assembly)),
        kv_buffers=kv_buffer_depth(by_stage["ttgir"].read_text()),
        dot_dtype=next(iter(DOT_OPERANDS.findall(by_stage["ttir"].read_text())), None),
        keeps_subnormals=FLUSHES_SUBNORMALS.search(assembly) is None,
        compile_s=compile_s,
    )


# A load of a 2-D tile in TTGIR: 'async_copy_global_to_local ... : tensor<64x128x!tt.ptr<bf16>', 'buffer_load ... :
# tensor<32x128xi8'. The operation and the tile's shape tell K and V from the tile of Q, which is loaded once.
TILE_LOAD = re.compile(r"(async_copy_global_to_local|amdg\.buffer_load|tt\.load) .*: tensor<(\d+x\d+)x")
DOT = re.compile(r"tt\.dot |ttng\.warp_group_dot |ttng\.tc_gen5_mma ")


def kv_buffer_depth(ttgir: str) -> int:
    """Tiles that are loaded ahead of every loop with matrix products in it, for each tile load inside; the smallest.

    This is what the software pipeliner achieved, whether the tiles wait in shared memory or (AMD) in registers. (Where
    matrix instructions read shared memory, wgmma and tcgen05, one more buffer holds the tile in use.) 0: the loop waits
    for each tile that it asks for, or there is no loop.
    """
    depths, ahead, lines = [], Counter(), iter(ttgir.splitlines())
    for line in lines:
        ahead.update(TILE_LOAD.findall(line))
        if "scf.for " not in line:
            continue
        closing = " " * (len(line) - len(line.lstrip())) + "}"
        body = "\n".join(itertools.takewhile(lambda inner: not inner.startswith(closing), lines))  # noqa: B023
        if DOT.search(body):
            in_loop = Counter(TILE_LOAD.findall(body))
            depths += [ahead[load] // count for load, count in in_loop.items()]
            ahead.clear()
    return min(depths, default=0)


@functools.cache
def _cuobjdump() -> str:
    return triton.knobs.nvidia.cuobjdump.path


def _resources_cuda(cubin: Path) -> tuple[int, int]:
    """(registers, stack bytes) per thread; Triton kernels use the stack for spills alone."""
    dump = subprocess.run([_cuobjdump(), "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", dump).groups()  # type: ignore[union-attr]
    return int(registers), int(stack)


def _resources_amd(assembly: str) -> tuple[int, int]:
    """(vector registers, scratch bytes) per lane, from the metadata at the end of the assembly."""

    def field(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", assembly).group(1))  # type: ignore[union-attr]

    scratch_bytes = field("private_segment_fixed_size")
    return field("vgpr_count"), max(scratch_bytes, 4 * field("vgpr_spill_count"))


def production_configs() -> dict[str, tuple[AotConfig, ...]]:
    """Every kernel file's production configurations, by module name."""
    modules = {name: importlib.import_module(f"twophase_kernels.{name}") for name in KERNEL_MODULES}
    return {name: module.production_configs() for name, module in modules.items()}


def compiler_environment(cache_dir: str) -> dict[str, str]:
    """Environment of a process that compiles: no interpreter, and an empty cache (a hit once hid a broken kernel)."""
    return os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache_dir}


def compile_in_subprocess(targets: Sequence[str], pattern: str = "") -> list[CompiledReport]:
    """`compile_configs` in a process without the interpreter and with an empty kernel cache.

    Args:
        targets: Keys of `TARGETS`.
        pattern: Only configurations with a match of this regular expression in 'module: name'.
    """
    with tempfile.TemporaryDirectory() as cache_dir:
        command = [sys.executable, "-m", "twophase_kernels.aot", "--json", "--in-process", "--kernel", pattern]
        command += [word for target in targets for word in ("--target", target)]
        result = subprocess.run(command, env=compiler_environment(cache_dir), capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"compiling for {', '.join(targets)} failed:\n{result.stderr[-4000:]}")
    rows = json.loads(result.stdout)
    # JSON has no tuples.
    return [CompiledReport(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in rows]


def _compile_here(targets: Sequence[str], pattern: str) -> list[CompiledReport]:
    configs = [
        config
        for module, configs in production_configs().items()
        for config in configs
        if re.search(pattern, f"{module}: {config.name}")
    ]
    return [report for target in targets for report in compile_configs(target, configs)]


def print_table(reports: Sequence[CompiledReport]) -> None:
    row = "{:<7} {:<24} {:<63} {:>5} {:>6} {:>4} {:>5} {:>7}  {:<9} {:<13} {:>4}/{:<4} {:>3} {:>6}"
    head = "target kernel config warps stages regs spill shared matrix async 16B <=4B K/V sec"
    print(row.format(*head.split()))
    for r in reports:
        matrix, copies = ",".join(r.matrix_instructions) or "-", ",".join(r.async_copies) or "-"
        numbers = (r.num_warps, r.num_stages, r.registers, r.spill_bytes, r.shared_bytes, matrix, copies)
        loads = (r.vector_loads, r.narrow_loads, r.kv_buffers, f"{r.compile_s:.1f}")
        print(row.format(r.target, r.kernel, r.config, *numbers, *loads))
        for problem in r.problems():
            print(f"        ^ {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="twophase_kernels.aot", description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable; all of them by default")
    parser.add_argument("--kernel", default="", metavar="REGEX", help="only configurations matching 'module: name'")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    targets = args.target or list(TARGETS)
    reports = (_compile_here if args.in_process else compile_in_subprocess)(targets, args.kernel)
    if args.json:
        print(json.dumps([dataclasses.asdict(report) for report in reports]))
    else:
        print_table(reports)
    if not args.in_process and any(report.problems() for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
