"""GPUs that Triton compiles for on a machine without one: a driver that claims to be it and launches nothing."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twophase_kernels._triton import KernelsUnavailableError, mode, triton


@dataclass(frozen=True)
class Target:
    """A GPU to compile for: Triton's name for it, and a program's limits."""

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    has_async_copies: bool


# Shared memory per block: CUDA C++ Programming Guide, table 'Technical Specifications per Compute Capability'; LDS of a
# CDNA3 compute unit: AMD Instinct MI300 ISA guide.
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024, True),
    "sm_86": Target("cuda", 86, 32, 99 * 1024, True),  # RTX 3090, A10: as sm_80, with less shared memory
    "sm_89": Target("cuda", 89, 32, 99 * 1024, True),  # RTX 4090, L4, L40S
    "sm_90": Target("cuda", 90, 32, 227 * 1024, True),
    "sm_100": Target("cuda", 100, 32, 227 * 1024, True),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024, False),
}


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

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: str) -> tuple[Any, int, int, int, int]:
        """(module, function, registers, spills, most threads per program); the module is not None once it is loaded."""
        return self, 0, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            self.launches += 1

        return launch


def require_compiler() -> None:
    """Raises KernelsUnavailableError if this process was started for the interpreter."""
    triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_90"]))
    if mode() != "cuda":
        raise KernelsUnavailableError(
            "This process runs kernels in the interpreter; compiling needs one started without TRITON_INTERPRET."
        )


def compiler_environment(cache_dir: str) -> dict[str, str]:
    """Environment of a process that compiles: no interpreter, and an empty cache (a hit once hid a broken kernel)."""
    return os.environ | {"TRITON_INTERPRET": "0", "TWOPHASE_KERNELS": "", "TRITON_CACHE_DIR": cache_dir}
