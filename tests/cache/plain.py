"""The cache's bookkeeping built from fresh copies of its modules, one of which may be a mutant.

The copies are loaded without the type-checking import hook: it makes these small methods six times slower, and it would
reject a mutant's classes for being others than the annotated ones, which kills for the wrong reason. The hooked
modules are tested too, by every test that imports `twophase.cache` by name.
"""

import importlib.util
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from twophase.cache.manager import CacheManager
from twophase_features.offloading import transfers
from twophase_features.windows.windowed_cache import WindowedCache

# Each imports some of those before it.
CACHE = ("block_pool", "prefix_cache", "manager")
WINDOWS = ("sliding_window", "windowed_prefixes", "windowed_cache")
MODULES = (
    *(f"twophase.cache.{name}" for name in CACHE),
    transfers.__name__,
    *(f"twophase_features.windows.{name}" for name in WINDOWS),
)


def cache_of(manager: type, windowed: type) -> Callable[..., CacheManager]:
    """Makes a cache like the engine does: the windowed one if there is a window."""
    return lambda *args, **options: (windowed if "window" in options else manager)(*args, **options)


typed_cache = cache_of(CacheManager, WindowedCache)


def load_plain(module: str, variant: ModuleType | None = None) -> ModuleType:
    """A fresh copy of a module, or of its mutant `variant`, without the import hook."""
    path = importlib.util.find_spec(module).origin if variant is None else variant.__file__
    source = Path(path).read_text() if variant is None else "".join(linecache.getlines(path))
    copy = ModuleType(f"{module}__plain" if variant is None else variant.__name__)
    copy.__file__ = path
    # Dataclasses look their module up while they are made.
    sys.modules[copy.__name__] = copy
    exec(compile(source, path, "exec"), copy.__dict__)
    return copy


def plain_modules(variant: ModuleType | None = None) -> dict[str, ModuleType]:
    """Every module of the bookkeeping over plain parts; a mutant `variant` of one of them takes that one's place."""
    mutated, _, name = ("" if variant is None else variant.__name__).partition("__mutant_")
    order = MODULES if not name or mutated in MODULES else (mutated, *MODULES)
    originals = {module: sys.modules[module] for module in order}
    try:
        for module in order:
            sys.modules[module] = load_plain(module, variant if name and module == mutated else None)
        modules = {module: sys.modules[module] for module in order}
        modules["twophase.cache.manager"].feature = lambda name: modules[f"twophase_features.{name}"]  # the door
        return modules
    finally:
        sys.modules.update(originals)


def plain_manager_class(variant: ModuleType | None = None) -> Callable[..., CacheManager]:
    """`CacheManager`, or `WindowedCache` if it is given a window, over plain parts."""
    modules = plain_modules(variant)
    manager = modules["twophase.cache.manager"].CacheManager
    return cache_of(manager, modules["twophase_features.windows.windowed_cache"].WindowedCache)
