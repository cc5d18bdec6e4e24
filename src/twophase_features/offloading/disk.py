"""A KV tier on disk: prefixes outlive the process, so that a long system prompt is computed once for all restarts."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from safetensors.torch import load_file, save_file

from twophase.core.errors import ConfigError
from twophase.core.plan import BlockKey, ScheduledChunk

SUFFIX = ".safetensors"


@final
class DiskTier:
    """A `KVTier` with one file for each block, in a folder of its own for each model.

    The folder's name is a digest of the model's logits after a few tokens, so models that differ in weights, dtype or
    K/V format never find each other's blocks. Several engines may use one folder: each finds the blocks that existed
    when it opened the folder, and its own.

    Args:
        folder: Made if it is missing.
        num_blocks: Maximum number of files; the least recently used are deleted. A block of SmolLM2-135M takes 360 KiB
            in bfloat16.

    Raises:
        ConfigError: `num_blocks` is below 1; from `attach`, the folder cannot be made or written.
    """

    def __init__(self, folder: str | Path, num_blocks: int = 1024) -> None:
        if num_blocks < 1:
            raise ConfigError(f"A tier on disk needs at least 1 block, got num_blocks={num_blocks}.")
        self.folder = Path(folder)
        self.num_blocks = num_blocks
        self._pages: list[Any] = []  # K, V and their scales, [layers, blocks, ...] each
        self._files: dict[str, None] = {}  # names, first = deleted next

    def attach(self, runner: Any) -> None:
        if self._pages:
            raise ConfigError("this tier holds the blocks of another engine; make one for each.")
        cache = runner.kv_cache
        self.folder /= _fingerprint(runner, cache.num_groups)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
            found = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        except OSError as error:
            raise ConfigError(f"the KV tier's folder {self.folder} cannot be used: {error}.") from error
        self._files = {path.name: None for path in found}
        self._pages = cache.storage

    def match(self, keys: Sequence[BlockKey]) -> int:
        return next((i for i, key in enumerate(keys) if _name(key) not in self._files), len(keys))

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        for i, (key, block_id) in enumerate(zip(keys, block_ids, strict=True)):
            name = _name(key)
            if name not in self._files:
                return i
            try:
                contents = load_file(self.folder / name)
            except Exception:  # deleted or damaged by another program: a miss, and no longer ours
                self._delete(name)
                return i
            for part, page in enumerate(self._pages):
                page[:, block_id].copy_(contents[str(part)])
            self._files[name] = self._files.pop(name)
        return len(keys)

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        new = {_name(key): block_id for key, block_id in zip(keys, block_ids, strict=True)}
        new = {name: new[name] for name in list(new)[-self.num_blocks :] if name not in self._files}
        for name, block_id in new.items():
            while len(self._files) >= self.num_blocks:
                self._delete(next(iter(self._files)))
            # Written beside it, then renamed, so that no other engine sees half a file.
            unfinished = self.folder / f"{name}.{os.getpid()}.tmp"
            save_file({str(i): page[:, block_id].contiguous().cpu() for i, page in enumerate(self._pages)}, unfinished)
            os.replace(unfinished, self.folder / name)
            self._files[name] = None
        return len(new)

    def _delete(self, name: str) -> None:
        self._files.pop(name, None)
        (self.folder / name).unlink(missing_ok=True)


def _name(key: BlockKey) -> str:
    return f"{key.digest.hex()}{SUFFIX}"


def _fingerprint(runner: Any, num_groups: int) -> str:
    """A digest of the model's logits after three tokens. Their K and V go into blocks that are still unused."""
    logits = runner.run([ScheduledChunk(0, [1, 2, 3], 0, [0] * num_groups, 1)])
    said = logits.float().cpu().numpy().tobytes() + repr(runner.kv_cache.spec).encode()
    return hashlib.blake2b(said, digest_size=8).hexdigest()
