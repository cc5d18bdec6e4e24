"""What checks are made of. Every helper either returns or raises `Rejected` with a message for the learner.

compare(got, expected, axes=("position", "head"))     type, shape, dtype, NaN, then the first difference
number(got), integer(got), integers(got)              a plain number, int or list of ints, or None if it is none
with unchanged(q=q, k=k): ...                         the call inside must not modify these tensors
fresh(got, q=q)                                       the result must not share memory with an input
with lasting(out=got): ...                            the call inside must not modify an earlier result
raises(ValueError, f, ...)                            the call must refuse
reject("...")                                         anything else
draw.normal(3, 4), draw.integer(1, 9), ...            random inputs, new in every run
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import torch

from twophase.core.errors import TwophaseError


class Rejected(TwophaseError):
    """A property does not hold. The message is one sentence; `details` are further lines (where, got, expected).

    `picture` is a PNG that shows it; the words say the same without it.
    """

    def __init__(self, message: str, details: Sequence[str] = (), picture: bytes = b"") -> None:
        super().__init__(message)
        self.details = tuple(details)
        self.picture = picture


def reject(message: str, *details: str, picture: bytes = b"") -> NoReturn:
    raise Rejected(message, details, picture)


class Draw:
    """Random inputs for one case. The seed is new in each run and is named when a case fails."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.random = random.Random(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float32).to(dtype or torch.float32)

    def uniform(self, *shape: int, low: int | float = 0, high: int | float = 1) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator)

    def integer(self, low: int, high: int) -> int:
        """An int in [low, high)."""
        return self.random.randrange(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


def plain(value: Any) -> Any:
    """`value` as a built-in: scalars, 0-d arrays and 0-d tensors as Python's numbers, subclasses as what they inherit.

    A tensor comes back without its gradient. Containers are converted at the top level only; anything else comes back
    as it is. A subclass may still lie about itself: that deceives its own check and nothing else.
    """
    if type(value) in (int, float, bool, str, bytes, type(None)):
        return value
    if isinstance(value, torch.Tensor):
        return value.item() if value.ndim == 0 and not value.is_complex() else value.detach()
    if isinstance(value, np.generic):
        return plain(value.item()) if not isinstance(value, np.void | np.object_) else value
    if type(value) is np.ndarray:
        return plain(value.item()) if value.ndim == 0 and value.dtype.kind in "biuf" else value
    for base in _BUILT_IN:
        if isinstance(value, base) and not isinstance(value, Enum):
            return base(map(plain, value)) if base in (set, frozenset) else base(value)
    if type(value) is Fraction:
        return value.numerator if value.denominator == 1 else value.numerator / value.denominator
    return value


_BUILT_IN: tuple[Any, ...] = (int, float, str, bytes, list, tuple, dict, set, frozenset)


def number(value: Any) -> int | float | None:
    """A number of Python, NumPy or torch (0-d) as an exact int or float; None if `value` is none. A bool is none."""
    value = plain(value)
    return value if type(value) in (int, float) else None


def integer(value: Any) -> int | None:
    """A whole number as an exact int, None if `value` is none; 3.0 counts as 3."""
    value = number(value)
    if type(value) is float:
        return int(value) if value.is_integer() else None
    return value


def integers(value: Any) -> list[int] | None:
    """A list or tuple of whole numbers as a list of exact ints; None if `value` is none."""
    value = plain(value)
    found = [integer(one) for one in value] if type(value) in (list, tuple) else [None]
    return None if None in found else found  # type: ignore[return-value]


def listed(value: Any) -> Any:
    """Nested lists for a NumPy array or a tensor of at least one dimension; anything else as `plain` gives it."""
    value = plain(value)
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Relative and absolute difference that two right ways of computing may show.

    They add up in different orders: a few dozen roundings of 2^-24 in float32, one or two of 2^-8 in bfloat16 and
    2^-11 in float16; values here are of order 1. float64 answers are mostly exact arithmetic.
    """
    table = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-4, 1e-5), torch.float16: (4e-3, 4e-3)}
    return table.get(dtype, (3e-2, 3e-2) if dtype.is_floating_point else (0.0, 0.0))


def compare(
    got: Any,
    expected: Any,
    *,
    what: str = "the result",
    axes: Sequence[str] = (),
    rtol: int | float | None = None,
    atol: int | float | None = None,
    any_dtype: bool = False,
    same_dtype: bool = False,
) -> None:
    """Reject `got` unless it is what the oracle gives; tell type, shape, dtype, NaN or the first difference.

    Numbers may be Python's, NumPy's or 0-d tensors, a whole number may be a float, and a tensor may be float64 where
    float32 is expected.

    Args:
        expected: A tensor, number, string, None, or a list, tuple or dict of such.
        what: How to call it in messages.
        axes: Names of a tensor's axes or a list's levels, for 'at position 3, head 1'.
        rtol, atol: In place of `tolerance(dtype)`; for plain floats 1e-6 each.
        any_dtype: Accept another dtype of the same values.
        same_dtype: Refuse float64 for float32 as well, where the dtype is what the exercise is about.
    """
    settings: dict[str, Any] = {"rtol": rtol, "atol": atol, "any_dtype": any_dtype, "same_dtype": same_dtype}
    if isinstance(expected, torch.Tensor):
        _compare_tensors(got, expected, what, axes, **settings)
        return
    got, expected = plain(got), plain(expected)
    if type(expected) is int and type(got) is float and got.is_integer():
        got = int(got)
    got = dict(got) if isinstance(expected, dict) and isinstance(got, Mapping) else got
    _require_type(got, expected, what)
    if isinstance(expected, dict):
        values = {plain(key): value for key, value in got.items()}
        _compare_keys(values, expected, what)
        for key, value in expected.items():
            compare(values[key], value, what=f"{what}[{key!r}]", **settings)
    elif isinstance(expected, list | tuple):
        _compare_sequences(got, expected, what, axes, settings)
    elif isinstance(expected, float):
        limit = (1e-6 if atol is None else atol) + (1e-6 if rtol is None else rtol) * abs(expected)
        if not (got == expected or abs(got - expected) <= limit):
            reject(f"{what} is {got:.6g}, expected {expected:.6g}", f"off by {abs(got - expected):.3g}")
    elif got != expected:
        reject(f"{what} is {shown(got)}, expected {shown(expected)}")


def compare_shapes(got: Any, expected: torch.Tensor, *, what: str = "the result", axes: Sequence[str] = ()) -> None:
    """Reject what is no tensor of this shape and dtype; values do not matter."""
    blank = torch.zeros_like(got) if isinstance(got, torch.Tensor) else got
    compare(blank, torch.zeros_like(expected), what=what, axes=axes)


def _require_type(got: Any, expected: Any, what: str) -> None:
    """`got` is of the kind that `expected` is; both are plain."""
    if got is None and expected is not None:
        reject(f"{what} is None", "Is a `return` missing?")
    kinds: tuple[type, ...] = next(
        (group for group in ((list, tuple), (set, frozenset)) if type(expected) in group), (type(expected),)
    )
    if type(expected) is float:
        kinds = (int, float)
    if type(got) not in kinds:
        reject(f"{what} is {_kind_of(got)}, expected {_kind_of(expected)}", *_tensor_of_one(got, expected))


def _require_tensor(got: Any, what: str) -> None:
    if not isinstance(got, torch.Tensor):
        reject(f"{what} is {_kind_of(got)}, expected a tensor", *["Is a `return` missing?"] * (got is None))


def _tensor_of_one(got: Any, expected: Any) -> tuple[str, ...]:
    if isinstance(got, torch.Tensor) and isinstance(expected, int | float) and got.numel() == 1:
        return ("`.item()` turns a tensor of one element into a number.",)
    return ()


def _compare_keys(got: Mapping[Any, Any], expected: Mapping[Any, Any], what: str) -> None:
    missing, extra = [k for k in expected if k not in got], [k for k in got if k not in expected]
    if missing:
        reject(f"{what} lacks the key {missing[0]!r}")
    if extra:
        reject(f"{what} has a key too many, {extra[0]!r}")


def _compare_sequences(
    got: Sequence[Any],
    expected: Sequence[Any],
    what: str,
    axes: Sequence[str],
    settings: Mapping[str, Any],
) -> None:
    axis = axes[0] if axes else "index"
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        compare(one, other, what=f"{what} at {axis} {at}", axes=axes[1:], **settings)
    if len(got) != len(expected):
        reject(
            f"{what} has {len(got)} element{'s' * (len(got) != 1)}, expected {len(expected)}",
            f"got      {shown(got)}",
            f"expected {shown(expected)}",
        )


def _compare_tensors(
    got: Any,
    expected: torch.Tensor,
    what: str,
    axes: Sequence[str],
    rtol: int | float | None,
    atol: int | float | None,
    any_dtype: bool,
    same_dtype: bool,
) -> None:
    _require_tensor(got, what)
    got, expected = got.detach(), expected.detach()
    if got.shape != expected.shape:
        reject(f"{what} has shape {_shape(got, axes)}, expected {_shape(expected, axes)}")
    is_finer = got.dtype == torch.float64 and expected.dtype == torch.float32 and not same_dtype
    if got.dtype != expected.dtype and not is_finer and not any_dtype:
        reject(f"{what} has dtype {_name(got.dtype)}, expected {_name(expected.dtype)}")
    table = tolerance(expected.dtype)
    rtol, atol = table[0] if rtol is None else rtol, table[1] if atol is None else atol
    left, right = got.cpu().to(torch.float64), expected.cpu().to(torch.float64)
    if not expected.dtype.is_floating_point and expected.dtype != torch.bool and not got.dtype.is_floating_point:
        wrong = got.cpu() != expected.cpu()  # int64 does not fit into float64
    else:
        wrong = ~torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(wrong.any()):
        return
    _reject_first(left, right, wrong, what, axes)


def _reject_first(
    got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, what: str, axes: Sequence[str]
) -> NoReturn:
    where = tuple(int(i) for i in wrong.nonzero()[0])
    one, other = got[where].item(), expected[where].item()
    place = _place(where, axes)
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    if torch.isnan(got[where]) and not torch.isnan(expected[where]):
        reject(f"{what} is NaN{place}", f"expected {other:.6g}", f"{int(torch.isnan(got).sum())} elements are NaN")
    reject(
        f"{what} differs first{place or ' in its only element'}: got {one:.6g}, expected {other:.6g}",
        f"off by {abs(one - other):.3g}; {count}",
    )


def _place(where: Sequence[int], axes: Sequence[str]) -> str:
    if not where:
        return ""
    if len(axes) == len(where):
        return " at " + ", ".join(f"{axis} {i}" for axis, i in zip(axes, where, strict=True))
    return f" at index [{', '.join(map(str, where))}]"


def _shape(tensor: torch.Tensor, axes: Sequence[str]) -> str:
    text = f"[{', '.join(map(str, tensor.shape))}]"
    return f"{text} ({', '.join(axes)})" if axes and len(axes) == tensor.ndim else text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape [{', '.join(map(str, value.shape))}] and dtype {_name(value.dtype)}"
    if value is None or value is Ellipsis:
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def shown(value: Any, limit: int = 120) -> str:
    """Its repr, shortened; that may be the learner's code, and raise."""
    try:
        text = repr(value)
    except Exception as error:
        return f"{_kind_of(value)} whose repr raises {type(error).__name__}"
    return text if len(text) <= limit else f"{text[: limit - 20]} ... {text[-15:]}"


def amount(number: int, thing: str, things: str = "") -> str:
    """'1 draft', '2 drafts'; `things` where the plural takes more than an s."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


@contextmanager
def unchanged(**inputs: Any) -> Iterator[None]:
    """Reject a call that modifies any of these tensors or lists."""
    advice = "Work on a copy, or use operations without a trailing underscore."
    with _kept(inputs, "the call modified its input `{}`", advice):
        yield


@contextmanager
def lasting(**results: torch.Tensor) -> Iterator[None]:
    """Reject calls inside that change what an earlier call returned: a buffer that is used again, for instance."""
    advice = "Make a new tensor in each call; what is kept between calls belongs to all of them."
    with _kept(results, "a second call, with other inputs, changed `{}` of the first one's result", advice):
        yield


@contextmanager
def _kept(values: Mapping[str, Any], message: str, advice: str) -> Iterator[None]:
    before = {name: v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for name, v in values.items()}
    yield
    for name, value in values.items():
        if not _is_same(value, before[name]):
            reject(message.format(name), advice)


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, torch.Tensor):
        return now.shape == before.shape and torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)
    return bool(now == before)


def fresh(got: torch.Tensor, **inputs: torch.Tensor) -> None:
    """Reject a result that shares memory with an input: a later write to one would change the other."""
    _require_tensor(got, "the result")
    for name, value in inputs.items():
        if got.numel() and got.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
            reject(f"the result is a view of the input `{name}`: writing to one would change the other")


def finite(got: torch.Tensor, what: str = "the result", axes: Sequence[str] = ()) -> None:
    """Reject NaN and infinity."""
    _require_tensor(got, what)
    bad = ~torch.isfinite(got)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        reject(f"{what} is {got[where].item()}{_place(where, axes)}", f"{int(bad.sum())} elements are not finite")


def raises(error: type[BaseException], call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Reject a call that does not raise `error`. Another error goes through, and is shown as the learner's."""
    try:
        got = call(*args, **kwargs)
    except error:
        return
    reject(f"{_called(call, args)} should raise {error.__name__}; it returned {shown(got)}")


def _called(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """'slot(-1)', where that is short."""
    name = getattr(call, "__name__", "")
    if name.isidentifier() and args and all(isinstance(arg, int | float | str) for arg in args):
        return f"{name}({', '.join(map(shown, args))})"
    return "the call"
