"""The blank that a learner sees: `____("1.3", 2, "the logits of the last position")`.

Inside a function it raises as soon as it is reached, so that the traceback points at the blank. At the top level of a
cell it is a value that raises when it is used, so that an untouched notebook still runs from top to bottom.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NoReturn, no_type_check

from twophase.core.errors import TwophaseError


class UnfilledError(TwophaseError):
    """A blank of an exercise was used before it was filled."""

    def __init__(self, exercise: str, number: int, what: str = "") -> None:
        self.exercise, self.number = exercise, number
        named = f"blank {number}: {what}" if what else f"blank {number}"
        super().__init__(f"Exercise {exercise}, {named} is still empty")


@no_type_check  # a checker's wrapper would stand between this frame and the caller's
def ____(exercise: str, number: int = 1, what: str = "") -> Any:
    """A blank: what goes here is yours to write. Replace the whole call, brackets included.

    Raises:
        UnfilledError: when reached inside a function; at the top level, when the returned value is used.
    """
    frame = sys._getframe(1)
    # Only a function's code is 'optimized' in CPython's sense; module and class bodies are not.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        raise UnfilledError(exercise, number, what)
    value = Unfilled(exercise, number, what)
    if "__qualname__" in frame.f_locals and frame.f_locals is not frame.f_globals:
        # A class to be written whole: nothing else would tell that this line stands in its body.
        frame.f_locals[f"_blank_{number}"] = value
    return value


class Unfilled:
    """The value of a blank at the top level of a cell. Anything done with it but printing raises `UnfilledError`."""

    def __init__(self, exercise: str, number: int, what: str = "") -> None:
        self._blank = (exercise, number, what)

    def __repr__(self) -> str:
        return f"<{UnfilledError(*self._blank)}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # protocols such as _repr_html_ or __array_interface__ are asked for, not used
            raise AttributeError(name)
        raise UnfilledError(*self._blank)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise UnfilledError(*next(_blanks_among([args, kwargs or {}]))._blank)


def _blanks_among(value: Any) -> Iterator[Unfilled]:
    if isinstance(value, Unfilled):
        yield value
    elif isinstance(value, dict):
        yield from _blanks_among(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _blanks_among(item)


def _raises(name: str) -> Callable[..., NoReturn]:
    def use(self: Unfilled, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnfilledError(*self._blank)

    use.__name__ = name
    return use


# Python looks operators up on the type and never asks __getattr__, so each is written to the class.
_BINARY = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift"
_OTHER = (
    "call bool len iter next contains getitem setitem delitem int float complex index round trunc floor ceil neg pos "
    "abs invert eq ne lt le gt ge hash enter exit format array reversed"
)
for _name in [*_OTHER.split(), *(p + n for n in _BINARY.split() for p in ("", "r", "i"))]:
    setattr(Unfilled, f"__{_name}__", _raises(f"__{_name}__"))


def blanks_left(value: object, exercise: str) -> set[int]:
    """Numbers of the blanks of `exercise` that still stand in a function, class, Triton kernel, value or dictionary."""
    if isinstance(value, Unfilled):
        return {value._blank[1]} if value._blank[0] == exercise else set()
    if isinstance(value, dict):
        return set().union(*(blanks_left(item, exercise) for item in value.values()))
    if isinstance(value, type):
        return set().union(*(blanks_left(member, exercise) for member in vars(value).values()))
    if isinstance(value, property | staticmethod | classmethod):
        value = value.fget if isinstance(value, property) else value.__func__
    value = getattr(value, "fn", value)  # triton.jit keeps the function in .fn
    value = inspect.unwrap(value) if callable(value) else value
    return set(dict(_blanks_in_code(value.__code__, exercise))) if isinstance(value, FunctionType) else set()


def empty_in_kernel(kernel: object, exercise: str) -> UnfilledError | None:
    """The error of a Triton kernel's first blank that still stands; compiled, the blank itself raises nothing."""
    function = getattr(kernel, "fn", None)
    left = dict(_blanks_in_code(function.__code__, exercise)) if isinstance(function, FunctionType) else {}
    return UnfilledError(exercise, *min(left.items())) if left else None


def _blanks_in_code(code: CodeType, exercise: str) -> Iterator[tuple[int, str]]:
    """(number, what it asks for) of each."""
    if "____" in code.co_names:
        for here, number, what in _calls(code):
            if here == exercise:
                yield number, what
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _blanks_in_code(constant, exercise)


def _calls(code: CodeType) -> Iterator[tuple[str, int, str]]:
    """The constants after each load of `____`: exercise, number, and what it asks for, if it says so."""
    import dis

    instructions = [i for i in dis.get_instructions(code) if i.opname.startswith("LOAD")]
    for at, instruction in enumerate(instructions[:-2]):
        if instruction.argval == "____":
            exercise, number, *what = (i.argval for i in instructions[at + 1 : at + 4])
            if isinstance(exercise, str) and isinstance(number, int):
                yield exercise, number, next((text for text in what if isinstance(text, str)), "")
