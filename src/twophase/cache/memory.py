"""How much memory is free, on a GPU or on the host, without a dependency for it."""

import os
from pathlib import Path

import torch

GIB = 1024**3

# Where neither Linux's /proc nor POSIX sysconf tells: enough for the small default model, safe on any laptop.
FALLBACK_FREE_BYTES = 2 * GIB

# (limit, usage) of a container: the host's figures mean nothing inside one. cgroup v2, then v1.
_CGROUP_FILES = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
)


def free_memory_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`; for anything but CUDA, of the host's memory."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return free_host_memory_bytes()


def free_host_memory_bytes(root: Path = Path("/")) -> int:
    """Host memory available without swapping, within the container's limit if there is one. `root` is for tests."""
    candidates = [_available_from_meminfo(root), _available_in_cgroup(root)]
    known = [num_bytes for num_bytes in candidates if num_bytes is not None]
    return min(known) if known else _available_from_sysconf()


def _available_from_meminfo(root: Path) -> int | None:
    """Linux's own estimate of what new allocations can get, page cache included (proc(5), MemAvailable)."""
    kib = _read_fields(root / "proc/meminfo").get("MemAvailable:")
    return None if kib is None else kib * 1024


def _available_in_cgroup(root: Path) -> int | None:
    for limit_file, usage_file, stat_file in _CGROUP_FILES:
        limit, usage = _read_int(root / limit_file), _read_int(root / usage_file)
        if limit is not None and usage is not None:
            # File pages not in active use are given back under pressure, so they count as free.
            reclaimable = _read_fields(root / stat_file).get("inactive_file", 0)
            return max(0, limit - usage + reclaimable)
    return None


def _available_from_sysconf() -> int:
    """Free pages where the system tells (not macOS), else half of all pages, else a fixed modest figure (Windows)."""
    for pages_name, share in (("SC_AVPHYS_PAGES", 1.0), ("SC_PHYS_PAGES", 0.5)):
        try:
            return int(os.sysconf(pages_name) * os.sysconf("SC_PAGE_SIZE") * share)
        except (AttributeError, ValueError, OSError):
            continue
    return FALLBACK_FREE_BYTES


def _read_fields(path: Path) -> dict[str, int]:
    """`name number ...` lines as a dict; empty if the file can't be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2 and words[1].isdigit()}


def _read_int(path: Path) -> int | None:
    """The file's one number; None if it can't be read or says 'max' (no limit)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
