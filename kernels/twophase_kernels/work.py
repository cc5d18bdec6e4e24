"""What a kernel cannot do without: the bytes it must move and the floating-point operations it must do.

Counted from shapes beside each kernel, so that a measured time can be read as a share of what the machine can do.
"""

from typing import NamedTuple


class Work(NamedTuple):
    """Least bytes to and from device memory, and multiply and add counted as two operations."""

    num_bytes: int
    num_flops: int

    @property
    def intensity(self) -> float:
        """Operations per byte; below the machine's own ratio, memory is the limit."""
        return self.num_flops / self.num_bytes
