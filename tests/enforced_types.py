"""In the tests, every call's types and shapes are checked against its annotations."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
from beartype import BeartypeConf
from beartype.claw import beartype_packages

SOURCE = Path(__file__).parents[1] / "src"


class TypeViolation(Warning, TypeError):
    """A value is not what the annotation says. A warning is raised as an error as long as one wants it to be."""


def enforce_types(*packages: str) -> None:
    """Check what is imported from now on of these packages.

    jaxtyping's hook ties the shapes of a call's arguments together, and makes a call several times slower than
    beartype's own. So only modules that name shapes get it (and those that name what only a type checker imports, which
    beartype's own refuses to call); the scheduler's tests take a third of the time.
    """
    files = [file for package in packages for file in (SOURCE / package).rglob("*.py")]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    with_shapes = [file for file, text in texts.items() if "jaxtyping" in text or "TYPE_CHECKING" in text]
    # A package's __init__ would stand for all of its modules.
    without = [file for file in files if file not in with_shapes and file.name != "__init__.py"]
    jaxtyping.install_import_hook([_module(file) for file in with_shapes], "beartype.beartype")
    warnings.simplefilter("error", TypeViolation)
    # Not the assignments in a function's body: each would be checked as often as a loop comes by.
    conf = BeartypeConf(claw_is_pep526=False, violation_type=TypeViolation)
    beartype_packages([_module(file) for file in without], conf=conf)


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
