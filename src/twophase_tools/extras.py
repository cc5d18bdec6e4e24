"""What `pip install .` leaves out: the packages of the extras, asked for before the work that needs them begins."""

from importlib import metadata

from packaging.requirements import Requirement

from twophase.core.errors import TwophaseError


class MissingPackagesError(TwophaseError):
    """A command needs packages of an extra that is not installed; names them and says how to get them."""


def requirements(extra: str = "") -> list[Requirement]:
    """This package's dependencies for this system; those of an extra alone, by its name.

    Raises:
        importlib.metadata.PackageNotFoundError: twophase itself is not installed.
    """
    pins = [Requirement(line) for line in metadata.requires("twophase") or []]
    without = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"extra": ""})]
    if not extra:
        return without
    return [pin for pin in pins if pin not in without and pin.marker and pin.marker.evaluate({"extra": extra})]


def is_installed(package: str) -> bool:
    """Whether a distribution of this name is here, in whatever version."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def how_to_install(extra: str) -> str:
    """The cure. Not `pip install twophase[...]`: that would ask a package index for whoever has the name there."""
    return f"install the extra twophase[{extra}]: pip install '.[{extra}]' in the repository"


def check_installed(what: str, *packages: str, extra: str = "labs") -> None:
    """Refuse `what` if one of the `packages` is missing; by default all those of the extra are needed.

    Raises:
        MissingPackagesError: Names what is missing and the extra that brings it.
    """
    needed = packages or tuple(pin.name for pin in requirements(extra))
    missing = [package for package in needed if not is_installed(package)]
    if missing:
        raise MissingPackagesError(f"{what} needs {', '.join(missing)}, not installed here; {how_to_install(extra)}.")
