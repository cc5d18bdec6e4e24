"""TTIR -> C: the compiler's entry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """An argument of a compiled kernel, in the order of `args` in runtime.h."""

    name: str
    type: str  # as MLIR names it: 'i32', 'f32', 'ptr<bf16>', ...
    is_pointer: bool


@dataclass(frozen=True)
class Site:
    """A place in the kernel's source that a checked launch may name (`fault.site` is an index into `sites`)."""

    file: str
    line: int
    what: str  # 'load', 'store', 'atomic' or 'assert'
    argument: str  # the pointer argument's name; '' if it cannot be traced
    message: str = ""  # an assertion's


@dataclass(frozen=True)
class Generated:
    """A kernel in C. Compile `c_source` with this folder on the include path (`-I`): it includes its headers by name.

    `headers` are the files that it includes, for a cache's key.
    """

    name: str
    c_source: str
    arguments: tuple[Argument, ...]
    sites: tuple[Site, ...]
    stack_bytes: int
    checked: bool
    headers: tuple[str, ...] = ("runtime.h", "numbers.h", "products.h")


def generate(ttir_text: str, checked: bool = False) -> Generated:
    """The C of a kernel, given as Triton prints its TTIR (`str(module)`, with locations).

    Args:
        ttir_text: After inlining, canonicalization and CSE; the rewrite of block pointers and descriptors done.
        checked: Verify each access against `launch.extents`, and let every loop end when `*launch.stop` is set.

    Raises:
        NotSupportedError: An operation that has no translation. Its message names the operation, the kernel's file and
            line, and what to do instead (`.operation`, `.file`, `.line`, `.advice`).
    """
    raise NotImplementedError
