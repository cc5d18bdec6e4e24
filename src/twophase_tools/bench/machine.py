"""What a result was measured on, and the machine's own ceilings: copy bandwidth and matrix-product rate."""

import datetime
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from twophase.memory import GIB, free_host_memory_bytes

PACKAGES = ("twophase", "torch", "triton", "transformers", "numpy")
GPU_FIELDS = (
    "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw", "power.limit",
    "clocks_event_reasons.active",
)  # fmt: skip


def describe_machine() -> dict[str, Any]:
    """Hardware, versions and date, now; they go with every result. Missing packages are left out."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "date_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "num_cores": num_usable_cores(),
        "num_threads": torch.get_num_threads(),
        "free_memory_bytes": free_host_memory_bytes(),
        "gpus": [_describe_gpu(torch.cuda.get_device_properties(index)) for index in range(num_gpus)],
        "cuda": torch.version.cuda,  # that torch was built with
        "versions": installed_versions(PACKAGES),
    }


def _describe_gpu(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "num_sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }


def machine_text(machine: Mapping[str, Any]) -> str:
    """What `describe_machine` found, in lines."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpus = "".join(
        f"\n  {gpu['name']}, capability {gpu['capability']}, {gpu['num_sms']} SMs, {gpu['memory_bytes'] / GIB:.0f} GiB"
        for gpu in machine["gpus"]
    )
    return (
        f"{machine['date_utc']}  {machine['cpu']}, {machine['num_cores']} cores, {machine['num_threads']} threads, "
        f"{machine['free_memory_bytes'] / GIB:.1f} GiB free, {machine['system']}{gpus}\n"
        f"  {versions}, CUDA {machine['cuda'] or 'not in this build of torch'}"
    )


def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Name -> version of those that are installed."""
    versions = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def num_usable_cores() -> int:
    """Cores this process may run on: fewer than the machine has inside a container or under `taskset`."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity masks
        return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as its maker writes it, or the architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_clocks(device: torch.device) -> dict[str, str] | None:
    """What decides about a GPU's times and is not in its name, now, as nvidia-smi tells it; None where it does not.

    `clocks_event_reasons.active` has a bit for each reason why clocks are low (nvmlClocksEventReason in NVML's header):
    1 idle, 4 power cap, 8 hardware slowdown, 20 and 40 thermal slowdowns, 80 power brake, all hexadecimal.
    """
    if device.type != "cuda":
        return None
    gpu = f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", gpu, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return dict(zip(GPU_FIELDS, (value.strip() for value in line.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def measure_copy_bandwidth(device: torch.device, num_bytes: int = 256 * 1024**2, repeats: int = 9) -> float:
    """Bytes per second of a large device-to-device copy, bytes read plus bytes written: the roof for moving bytes."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_time_s(lambda: target.copy_(source), device, repeats)


def measure_read_bandwidth(device: torch.device, num_bytes: int = 256 * 1024**2, repeats: int = 9) -> float:
    """Bytes per second of summing a large array, which only reads."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / median_time_s(source.sum, device, repeats)


def measure_matmul_rate(device: torch.device, dtype: torch.dtype, size: int = 1024, repeats: int = 9) -> float:
    """FLOP per second of a square matrix product (2 size^3 operations): the roof for arithmetic.

    Random operands: zeros draw less power and run faster than real data.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    return 2 * size**3 / median_time_s(lambda: a @ b, device, repeats)


def median_time_s(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of one call after two warm-ups; on CUDA by events around each call."""
    for _ in range(2):
        function()
    if device.type == "cuda":
        return statistics.median(cuda_times_s(function, repeats))
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        function()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


def cuda_times_s(function: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls by CUDA events, each call finished before the next starts."""
    times_s = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) / 1e3)
    return times_s
