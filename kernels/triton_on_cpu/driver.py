"""Triton's backend and driver for CPUs. Specialisation, constexprs, the binder and the disk cache stay Triton's own.

The stages of a compilation: `ttir` (Triton's front end and passes), `c` (generate.py), `so` (compile.py).
"""

import contextlib
import hashlib
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton._C.libtriton import ir, passes
from triton.backends import Backend, backends
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.backends.driver import DriverBase

from triton_on_cpu.compile import HERE, compile_c, toolchain
from triton_on_cpu.errors import TritonOnCpuError
from triton_on_cpu.generate import generate

NAME = "cpu"  # of the backend and of its target


@cache
def version() -> str:
    """A hash of this package's code: a kernel that another version has compiled is not taken from the cache."""
    files = sorted([*HERE.glob("*.py"), *HERE.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


@dataclass(frozen=True)
class Options:
    """Options that Triton's front end or a launch may ask for; most are about GPUs only."""

    checked: bool = False
    num_warps: int = 4
    num_stages: int = 1
    num_ctas: int = 1
    maxnreg: int | None = None
    debug: bool = False
    sanitize_overflow: bool = False
    arch: str = ""
    backend_name: str = NAME
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e4nv",)
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[Any, ...] = ()
    instrumentation_mode: str = ""
    ir_override: str | None = None

    def hash(self) -> str:
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()


class CpuBackend(BaseBackend):
    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == NAME

    def hash(self) -> str:
        return f"{NAME} {version()} {toolchain().identity}"

    def parse_options(self, options: dict[str, Any]) -> Options:
        known = {key: value for key, value in options.items() if key in Options.__dataclass_fields__}
        known = {key: value for key, value in known.items() if value is not None}
        chosen = Options(**{"checked": getattr(triton.runtime.driver.active, "checked", False), **known})
        return replace(chosen, debug=chosen.debug or chosen.checked)  # without it Triton drops tl.device_assert

    def pack_metadata(self, metadata: Any) -> tuple[()]:
        return ()

    def get_codegen_implementation(self, options: Options) -> dict[str, Callable[..., Any]]:
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}

    def get_module_map(self) -> dict[str, Any]:
        return {}

    def load_dialects(self, context: Any) -> None:
        """Triton's own are all that there are."""

    def add_stages(self, stages: dict[str, Any], options: Options, language: Any = None) -> None:
        stages["ttir"] = make_ttir
        stages["c"] = lambda module, metadata: make_c(str(module), metadata, options.checked)
        # A checked kernel is tried more often than it runs: with -O1 it compiles in half the time.
        extra = ("-O1",) if options.checked else ()
        stages["so"] = lambda source, metadata: compile_c(source, metadata["name"], extra)


def make_ttir(module: Any, metadata: dict[str, Any]) -> Any:
    """Triton's passes that know nothing of GPUs, on a module in place; also returned."""
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    manager.run(module, "make_ttir")
    metadata["name"], metadata["shared"] = module.get_entry_func_name(), 0
    return module


def make_c(ttir_text: str, metadata: dict[str, Any], checked: bool) -> str:
    """The kernel's C; what the launcher must know of it goes into `metadata`, which is kept as JSON."""
    generated = generate(ttir_text, checked)
    metadata["arguments"] = generated.arguments
    metadata["sites"] = [asdict(site) for site in generated.sites]
    return generated.c_source


class _OfThread(threading.local):
    recording: Any = None


class CpuDriver(DriverBase):
    """Stands where Triton's CUDA driver would.

    Attributes:
        checked: Kernels are compiled with checks and launched under a time limit.
        time_limit_s: The longest that a checked launch may take.
        of_thread: Its `recording` takes down each launch of the present thread while it is not None.
    """

    runs_on_cpu = True

    def __init__(self) -> None:
        self.utils = self
        self.checked = False
        self.time_limit_s = 60.0
        self.of_thread = _OfThread()

    @classmethod
    def is_active(cls) -> bool:
        """Whether Triton should take it by itself: no, `install` sets it, beside whatever GPU there may be."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(NAME, 0, 1)

    def get_current_device(self) -> str:
        # Triton keeps compiled kernels per device: checked ones are of a device of their own.
        return f"{NAME}, checked" if self.checked else NAME

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_properties(self, device: str) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": torch.get_num_threads()}

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return partial(do_bench, warmup=5, rep=50)  # milliseconds; the autotuner times each of its configurations

    def get_device_interface(self) -> Any:
        from triton_on_cpu.launch import Clock

        return Clock

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, buffer: torch.Tensor) -> None:
        """Triton empties a GPU's L2 between two timed runs; a CPU's caches are left alone."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: str) -> tuple[Any, int, int, int, int]:
        """(module, function, registers, spills, most threads per program): the launcher loads the file by itself."""
        return self, 0, 0, 0, 1 << 30

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        from triton_on_cpu.launch import Launcher

        return Launcher(self, source, metadata)


def install() -> CpuDriver:
    """From here on `kernel[grid](...)` compiles for this CPU and takes CPU tensors, in this process.

    Raises:
        CompilerMissingError: There is no C compiler.
        TritonOnCpuError: This process runs kernels in Triton's interpreter, which was decided when triton was imported.
    """
    if triton.knobs.runtime.interpret or not isinstance(triton.language.sum, triton.JITFunction):
        raise TritonOnCpuError(
            "This process runs kernels in Triton's interpreter, for TRITON_INTERPRET was set when triton was imported. "
            "Unset it and start Python again (in a notebook: restart the kernel)."
        )
    toolchain()
    _require_cache()
    backends[NAME] = Backend(CpuBackend, CpuDriver)
    triton.runtime.driver.set_active(_driver())
    return _driver()


@cache
def _driver() -> CpuDriver:
    """One for all calls of `install`: kernels that were launched before a second call keep it."""
    return CpuDriver()


def uninstall() -> None:
    """Triton finds its driver anew: a GPU's, or none."""
    backends.pop(NAME, None)
    triton.runtime.driver.set_active(None)


def active_driver() -> CpuDriver:
    """The driver that `install` has set.

    Raises:
        TritonOnCpuError: None is.
    """
    driver = triton.runtime.driver._active
    if not isinstance(driver, CpuDriver):
        raise TritonOnCpuError("Kernels do not run on the CPU in this process yet: call triton_on_cpu.install() first.")
    return driver


@contextlib.contextmanager
def checked(time_limit_s: float = 60.0) -> Iterator[None]:
    """Within it each access is verified, and a launch that takes longer than `time_limit_s` is stopped.

    Raises:
        OutOfBoundsError: On a launch that reads or writes outside the tensors it was given; the access is not made.
        AssertionFailedError: On a launch in which a `tl.device_assert` does not hold.
        TimeLimitError: On a launch that takes longer than the limit.
        ValueError: The time limit is not a positive number.
    """
    if not isinstance(time_limit_s, (int, float)) or not time_limit_s > 0:  # `not >`, for a NaN compares as False
        raise ValueError(f"time_limit_s must be a positive number of seconds; got {time_limit_s!r}")
    driver = active_driver()
    before = driver.checked, driver.time_limit_s
    driver.checked, driver.time_limit_s = True, time_limit_s
    try:
        yield
    finally:
        driver.checked, driver.time_limit_s = before


def _require_cache() -> None:
    """Where Triton's cache folder cannot be written, one of this process's own takes its place."""
    folder = Path(triton.knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return
    except OSError as error:
        reason = error.strerror
    substitute = tempfile.TemporaryDirectory(prefix="triton_on_cpu_cache_")
    _substitutes.append(substitute)
    triton.knobs.cache.dir = substitute.name
    warnings.warn(
        f"{folder} does not take files ({reason}). Set TRITON_CACHE_DIR to a folder that does; until then each process "
        "compiles its kernels anew.",
        stacklevel=3,
    )


_substitutes: list[tempfile.TemporaryDirectory[str]] = []  # removed when Python ends
