"""In the tests, every call's types and shapes are checked against its annotations."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ForwardRef, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.claw import beartype_packages

SOURCE = Path(__file__).parents[1] / "src"
# jaxtyping's own decorator, and what it opens for each call: there a name of an axis stands for one size.
_original = jaxtyping.jaxtyped
_axis_names = _original("context")


class TypeViolation(Warning, TypeError):
    """A value is not what the annotation says. A warning is raised as an error as long as one wants it to be."""


def enforce_types(*packages: str) -> None:
    """Check what is imported from now on of these packages.

    jaxtyping's hook ties the shapes of a call's arguments together, and makes a call slower than beartype's own. So only
    modules that name shapes get it (and those that name what only a type checker imports, which beartype's own refuses
    to call).
    """
    files = [file for package in packages for file in (SOURCE / package).rglob("*.py")]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    with_shapes = [file for file, text in texts.items() if "jaxtyping" in text or "TYPE_CHECKING" in text]
    # A package's __init__ would stand for all of its modules.
    without = [file for file in files if file not in with_shapes and file.name != "__init__.py"]
    jaxtyping.jaxtyped = jaxtyped  # the hook puts the decorator of this name everywhere
    jaxtyping.install_import_hook([_module(file) for file in with_shapes], "beartype.beartype")
    warnings.simplefilter("error", TypeViolation)
    # Not the assignments in a function's body: each would be checked as often as a loop comes by.
    conf = BeartypeConf(claw_is_pep526=False, violation_type=TypeViolation)
    beartype_packages([_module(file) for file in without], conf=conf)


def jaxtyped(*, typechecker: Callable) -> Callable:
    """Stands for jaxtyping's own decorator, and raises the same error for the same calls.

    That one binds each call's arguments in Python and looks at them before the call and once more after it, which was
    most of the time of an engine's step on a tiny model. Here beartype looks at them once, and at the result.
    """

    def decorate(what: Any) -> Any:
        if inspect.isclass(what) and is_dataclass(what):
            if "__init__" in vars(what):
                what.__init__ = decorate(what.__init__)
            return what
        if not inspect.isfunction(what) or inspect.isgeneratorfunction(what) or _is_quoted(what):
            return _original(what, typechecker=typechecker)
        return _checked(what)

    return decorate


def _checked(function: Callable) -> Callable:
    checked = beartype(function, conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _axis_names:
            return checked(*args, **kwargs)

    return call


def _is_quoted(function: Callable) -> bool:
    """Whether an annotation is a name in quotes, which only a type checker may know."""
    seen = list(function.__annotations__.values())
    while seen:
        annotation = seen.pop()
        if isinstance(annotation, str | ForwardRef):
            return True
        seen.extend(get_args(annotation))
    return False


def _module(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts)


@contextmanager
def unchecked_types() -> Iterator[None]:
    """Meanwhile every value comes as far as it does for users."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TypeViolation)
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
