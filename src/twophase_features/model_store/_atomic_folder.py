"""A folder that is either absent or complete, even after a kill or with a full disk.

Files are made in a work folder beside the target. Each finished one is recorded in the manifest there, so that a later
run continues after a killed one; one rename then puts the folder in place.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twophase.core.errors import ModelFolderError

MANIFEST_FILE = "manifest.json"
WRITE_CHUNK_BYTES = 4 * 2**20

Recipe = Mapping[str, Any]


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether every file is there, by names and sizes (contents: see `changed_files`), and made by this recipe."""
    manifest = _read_manifest(folder, recipe)
    return bool(manifest["files"]) and all(
        _size_or_none(folder / name) == entry["bytes"] for name, entry in manifest["files"].items()
    )


def changed_files(folder: Path) -> list[str]:
    """Names of files that are missing or whose SHA-256 is not the manifest's; reads everything.

    Raises:
        ModelFolderError: The folder has no readable manifest.
    """
    manifest = _load_manifest(folder)
    if manifest is None:
        raise ModelFolderError(f"{folder / MANIFEST_FILE} is missing or unreadable, so nothing can be verified.")
    return [name for name, entry in manifest["files"].items() if not _matches(folder / name, entry)]


def build(
    target: Path,
    recipe: Recipe,
    files: Mapping[str, Callable[[], bytes]],
    on_written: Callable[[int], object] = lambda num_bytes: None,
) -> None:
    """Make `target` from file names and functions that give their bytes. Call it inside `only_one_process`.

    Raises:
        ModelFolderError: The disk is full; the unfinished file is removed, finished files are kept for the next run.
        OSError: Any other error of the disk.
    """
    work = work_folder(target)
    work.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(work, recipe)
    for name, make_bytes in files.items():
        entry = manifest["files"].get(name)
        if entry is None or not _matches(work / name, entry):
            manifest["files"][name] = _write_durably(work / name, make_bytes(), on_written)
            _write_durably(work / MANIFEST_FILE, json.dumps(manifest, indent=2).encode())
    _put_in_place(work, target)


def work_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def check_free_space(target: Path, needed_bytes: int) -> None:
    """Raise ModelFolderError unless the disk has room for `needed_bytes`, less the bytes already in the work folder."""
    work = work_folder(target)
    already_written = sum(path.stat().st_size for path in work.iterdir()) if work.is_dir() else 0
    if _free_bytes(target.parent) + already_written < needed_bytes:
        raise _disk_full(target, needed_bytes)


@contextmanager
def only_one_process(target: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock; calls `on_wait` if another process has it. The system frees it when the holder dies."""
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_durably(
    path: Path, content: bytes, on_written: Callable[[int], object] = lambda num_bytes: None
) -> dict[str, Any]:
    """Write under a temporary name, flush to disk, rename. Returns the manifest's entry for the file."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            for start in range(0, len(content), WRITE_CHUNK_BYTES):
                on_written(file.write(memoryview(content)[start : start + WRITE_CHUNK_BYTES]))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno != errno.ENOSPC:
            raise
        raise _disk_full(path, len(content)) from error
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _put_in_place(work: Path, target: Path) -> None:
    """Rename the finished folder to its name. An existing broken folder is moved aside first."""
    _fsync_folder(work)
    aside = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    work.rename(target)
    _fsync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # Windows cannot open folders, and needs no flush
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_full(path: Path, needed_bytes: int) -> ModelFolderError:
    return ModelFolderError(
        f"Not enough disk space for {path}: {needed_bytes:,} bytes needed, {_free_bytes(path.parent):,} free. "
        "Free some, or set TWOPHASE_HOME to a folder on another disk."
    )


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _read_manifest(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """The manifest; empty if missing or made by another recipe."""
    manifest = _load_manifest(folder)
    if manifest is None or manifest.get("recipe") != recipe:
        return {"recipe": recipe, "files": {}}
    return manifest


def _load_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else None


def _matches(path: Path, entry: Mapping[str, Any]) -> bool:
    if _size_or_none(path) != entry["bytes"]:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]


def _size_or_none(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
