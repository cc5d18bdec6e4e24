"""What checks are made of. Every helper either returns or raises `Rejected` with a message for the learner.

compare(got, expected, axes=("position", "head"))     type, shape, dtype, NaN, then the first difference
with unchanged(q=q, k=k): ...                         the call inside must not modify these tensors
fresh(got, q=q)                                       the result must not share memory with an input
raises(ValueError, f, ...)                            the call must refuse
reject("...")                                         anything else
draw.normal(3, 4), draw.integer(1, 9), ...            random inputs, new in every run
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from twophase.core.errors import TwophaseError

if TYPE_CHECKING:
    import torch


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
        import torch

        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.random = random.Random(seed)

    def normal(self, *shape: int, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
        import torch

        return torch.randn(shape, generator=self.generator, dtype=torch.float32).to(dtype or torch.float32)

    def uniform(self, *shape: int, low: int | float = 0, high: int | float = 1) -> "torch.Tensor":
        import torch

        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> "torch.Tensor":
        """int64 in [low, high)."""
        import torch

        return torch.randint(low, high, shape, generator=self.generator)

    def permutation(self, n: int) -> "torch.Tensor":
        import torch

        return torch.randperm(n, generator=self.generator)

    def integer(self, low: int, high: int) -> int:
        """An int in [low, high)."""
        return self.random.randrange(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


def tolerance(dtype: "torch.dtype") -> tuple[float, float]:
    """Relative and absolute difference that two right ways of computing may show.

    They add up in different orders: a few dozen roundings of 2^-24 in float32, one or two of 2^-8 in bfloat16 and
    2^-11 in float16; values here are of order 1. float64 answers are mostly exact arithmetic.
    """
    import torch

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
) -> None:
    """Reject `got` unless it is what the oracle gives; tell type, shape, dtype, NaN or the first difference.

    Args:
        expected: A tensor, number, string, None, or a list, tuple or dict of such.
        what: How to call it in messages.
        axes: Names of a tensor's axes or a list's levels, for 'at position 3, head 1'.
        rtol, atol: In place of `tolerance(dtype)`; for plain floats 1e-6 each.
        any_dtype: Accept another dtype of the same values.
    """
    import torch

    if isinstance(expected, torch.Tensor):
        _compare_tensors(got, expected, what, axes, rtol, atol, any_dtype)
        return
    _require_type(got, expected, what)
    if isinstance(expected, Mapping):
        _compare_keys(got, expected, what)
        for key, value in expected.items():
            compare(got[key], value, what=f"{what}[{key!r}]", rtol=rtol, atol=atol, any_dtype=any_dtype)
    elif isinstance(expected, list | tuple):
        _compare_sequences(got, expected, what, axes, rtol, atol, any_dtype)
    elif isinstance(expected, float):
        limit = (1e-6 if atol is None else atol) + (1e-6 if rtol is None else rtol) * abs(expected)
        if not (got == expected or abs(got - expected) <= limit):
            reject(f"{what} is {got:.6g}, expected {expected:.6g}", f"off by {abs(got - expected):.3g}")
    elif got != expected:
        reject(f"{what} is {_short(got)}, expected {_short(expected)}")


def _require_type(got: Any, expected: Any, what: str) -> None:
    if got is None and expected is not None:
        reject(f"{what} is None", "Is a `return` missing?")
    if isinstance(expected, Mapping):
        fits = isinstance(got, Mapping)
    elif isinstance(expected, list | tuple):
        fits = isinstance(got, list | tuple)
    elif isinstance(expected, bool) or expected is None:
        fits = isinstance(got, type(expected))
    elif isinstance(expected, int | float):
        allowed = int if isinstance(expected, int) else int | float
        fits = isinstance(got, allowed) and not isinstance(got, bool)
    else:
        fits = isinstance(got, type(expected))
    if not fits:
        reject(f"{what} is {_kind_of(got)}, expected {_kind_of(expected)}", *_tensor_of_one(got, expected))


def _tensor_of_one(got: Any, expected: Any) -> tuple[str, ...]:
    import torch

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
    rtol: int | float | None,
    atol: int | float | None,
    any_dtype: bool,
) -> None:
    axis = axes[0] if axes else "index"
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        name = f"{what} at {axis} {at}"
        compare(one, other, what=name, axes=axes[1:], rtol=rtol, atol=atol, any_dtype=any_dtype)
    if len(got) != len(expected):
        reject(
            f"{what} has {len(got)} element{'s' * (len(got) != 1)}, expected {len(expected)}",
            f"got      {_short(got)}",
            f"expected {_short(expected)}",
        )


def _compare_tensors(
    got: Any,
    expected: "torch.Tensor",
    what: str,
    axes: Sequence[str],
    rtol: int | float | None,
    atol: int | float | None,
    any_dtype: bool,
) -> None:
    import torch

    if got is None:
        reject(f"{what} is None", "Is a `return` missing?")
    if not isinstance(got, torch.Tensor):
        reject(f"{what} is {_kind_of(got)}, expected a tensor")
    if got.shape != expected.shape:
        reject(f"{what} has shape {_shape(got, axes)}, expected {_shape(expected, axes)}")
    if got.dtype != expected.dtype and not any_dtype:
        reject(f"{what} has dtype {_name(got.dtype)}, expected {_name(expected.dtype)}")
    table = tolerance(expected.dtype)
    rtol, atol = table[0] if rtol is None else rtol, table[1] if atol is None else atol
    left, right = got.detach().cpu().to(torch.float64), expected.detach().cpu().to(torch.float64)
    if not expected.dtype.is_floating_point and expected.dtype != torch.bool and not got.dtype.is_floating_point:
        wrong = got.detach().cpu() != expected.detach().cpu()  # int64 does not fit into float64
    else:
        wrong = ~torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(wrong.any()):
        return
    _reject_first(left, right, wrong, what, axes)


def _reject_first(
    got: "torch.Tensor", expected: "torch.Tensor", wrong: "torch.Tensor", what: str, axes: Sequence[str]
) -> NoReturn:
    import torch

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


def _shape(tensor: "torch.Tensor", axes: Sequence[str]) -> str:
    text = f"[{', '.join(map(str, tensor.shape))}]"
    return f"{text} ({', '.join(axes)})" if axes and len(axes) == tensor.ndim else text


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def _kind_of(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of shape [{', '.join(map(str, value.shape))}] and dtype {_name(value.dtype)}"
    if value is None or value is Ellipsis:
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _short(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 20]} ... {text[-15:]}"


@contextmanager
def unchanged(**inputs: Any) -> Iterator[None]:
    """Reject a call that modifies any of these tensors or lists."""
    import copy

    import torch

    before = {name: v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for name, v in inputs.items()}
    yield
    for name, value in inputs.items():
        old = before[name]
        if isinstance(value, torch.Tensor):
            same = value.shape == old.shape and torch.equal(value.nan_to_num(), old.nan_to_num())
        else:
            same = value == old
        if not same:
            reject(
                f"the call modified its input `{name}`",
                "Work on a copy, or use operations without a trailing underscore.",
            )


def fresh(got: "torch.Tensor", **inputs: "torch.Tensor") -> None:
    """Reject a result that shares memory with an input: a later write to one would change the other."""
    for name, value in inputs.items():
        if got.numel() and got.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
            reject(f"the result is a view of the input `{name}`: writing to one would change the other")


def finite(got: "torch.Tensor", what: str = "the result", axes: Sequence[str] = ()) -> None:
    """Reject NaN and infinity."""
    import torch

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
    reject(f"the call should raise {error.__name__}; it returned {_short(got)}")
