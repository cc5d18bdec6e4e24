"""Errors in a kernel, with the line of its Python source."""


class EmulationError(RuntimeError):
    """The kernel's behaviour is a fault or undefined on a GPU, or not covered by this emulator.

    Attributes:
        source: The line of Python, 'attend_range.py:146', or ''.
        instruction: PTX.
    """

    def __init__(self, message: str, source: str = "", instruction: str = "") -> None:
        super().__init__(message, source, instruction)  # all three, so that it can be pickled
        self.message, self.source, self.instruction = message, source, instruction

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.message}{where}" + (f"  [{self.instruction}]" if self.instruction else "")


class MemoryFault(EmulationError):
    """An address outside of every tensor, not a multiple of the access's size, or read and never written."""


class RaceError(EmulationError):
    """Memory used by two warps, two blocks, or the hardware and a warp, with nothing that orders them."""


class NotCoveredError(EmulationError):
    """An instruction, or a form of one, that the emulator does not execute."""

    def __str__(self) -> str:
        return f"not covered: {super().__str__()}"
