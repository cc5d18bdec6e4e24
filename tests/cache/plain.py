"""The cache's bookkeeping built from fresh copies of its modules, one of which may be a mutant.

The copies are loaded without the type-checking import hook: it makes these small methods six times slower, and it would
reject a mutant's classes for being others than the annotated ones, which kills for the wrong reason. The hooked
modules are tested too, by every test that imports `twophase.cache` by name.
"""

import importlib.util
import sys
from types import ModuleType

from twophase.cache.manager import CacheManager

PACKAGE = "twophase.cache"

# Which of the manager module's names come from which module.
PARTS = {"block_pool": "BlockPool", "prefix_cache": "PrefixCache", "block_table": "BlockTable"}


def load_plain(module: str) -> ModuleType:
    """A fresh copy of a module, without the import hook."""
    name = f"{module}__plain"
    spec = importlib.util.spec_from_file_location(name, importlib.util.find_spec(module).origin)
    copy = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    sys.modules[name] = copy
    spec.loader.exec_module(copy)
    return copy


def plain_manager_class(variant: ModuleType | None = None) -> type[CacheManager]:
    """`CacheManager` over plain parts; a mutant `variant` of one of the modules takes that module's place."""
    stem, is_mutant = "", False
    if variant is not None:
        stem, marker, _ = variant.__name__.rpartition(".")[2].partition("__mutant_")
        is_mutant = bool(marker)

    def part(name: str) -> ModuleType:
        return variant if is_mutant and name == stem else load_plain(f"{PACKAGE}.{name}")

    manager = part("manager")
    for name, class_name in PARTS.items():
        setattr(manager, class_name, getattr(part(name), class_name))
    return manager.CacheManager
