"""A folder that is either absent or complete, even after a kill: made beside its place, then renamed.

The manifest in it has the recipe, and the size and SHA-256 of every file.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from twophase.core.errors import ModelFolderError

MANIFEST_FILE = "manifest.json"

Recipe = Mapping[str, Any]


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder was made by this recipe, and every file has its size (contents: see `changed_files`)."""
    manifest = _manifest(folder)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()} if manifest else {}
    files = manifest.get("files", {})
    return manifest.get("recipe") == recipe and all(sizes.get(name) == entry["bytes"] for name, entry in files.items())


def changed_files(folder: Path) -> list[str]:
    """Names of files that are missing or whose SHA-256 is not the manifest's; reads everything. Raises ModelFolderError
    if the folder has no readable manifest."""
    manifest = _manifest(folder)
    if not manifest:
        raise ModelFolderError(f"{folder / MANIFEST_FILE} is missing or unreadable, so nothing can be verified.")
    paths = [(folder / name, entry) for name, entry in manifest["files"].items()]
    return [path.name for path, entry in paths if not path.is_file() or _entry(path) != entry]


def build(target: Path, recipe: Recipe, files: Mapping[str, Callable[[], bytes]]) -> None:
    """Make `target` from file names and functions that give their bytes; replaces a broken one. Call it inside
    `only_one_process`. Raises OSError, for example when the disk is full; nothing is left then.
    """
    work = target.with_name(f".{target.name}.partial")
    shutil.rmtree(work, ignore_errors=True)  # a killed run's
    work.mkdir(parents=True)
    try:
        for name, make_bytes in files.items():
            (work / name).write_bytes(make_bytes())
        manifest = {"recipe": recipe, "files": {name: _entry(work / name) for name in files}}
        (work / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2))
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def only_one_process(target: Path, on_wait: Callable[[], None]) -> AbstractContextManager[object]:
    """Hold the folder's lock; calls `on_wait` if another process has it. The system frees it when the holder dies."""
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        return lock.acquire()


def _manifest(folder: Path) -> dict[str, Any]:
    """Empty if it is missing or unreadable."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
