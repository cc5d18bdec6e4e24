"""Triton's interpreter, quicker: most of its time for a call within a kernel went into looking through Triton's names."""

import inspect

from triton.language import core
from triton.runtime import interpreter


def remember_builtins() -> None:
    """For a launch, and for each call within it, the interpreter replaces all that is built in of five packages and
    classes. Which of their names that may be is looked up once here, and each time there."""
    packages = (interpreter.tl, core, core.tensor, interpreter.tl.math, core.tensor_descriptor_base)
    names = {
        package: [name for name, member in inspect.getmembers(package) if core.is_builtin(member)]
        for package in packages
    }

    def patch(package, builder, scope):
        for name in names[package]:
            member = getattr(package, name)
            if core.is_builtin(member):  # not yet replaced
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch
