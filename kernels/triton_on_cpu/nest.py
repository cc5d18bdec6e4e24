"""Loop nests over a tensor's elements, and indices of elements as C expressions."""

import math
import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Index:
    """One index of an element: a C expression, known from loop level `level` on (0: outside of all loops).

    `linear` is its form as {variable: factor, '': constant}, or None if it has no such form.
    """

    text: str
    level: int
    linear: dict[str, int] | None = field(default=None, compare=False, hash=False)


ZERO = Index("0", 0, {"": 0})


def constant_index(value: int) -> Index:
    return Index(str(value), 0, {"": value})


def weighted_sum(parts: list[tuple[Index, int]], constant: int = 0) -> Index:
    """The sum of indices times factors."""
    level = max((index.level for index, _ in parts), default=0)
    if all(index.linear is not None for index, _ in parts):
        linear = {"": constant}
        for index, factor in parts:
            for name, own in (index.linear or {}).items():
                linear[name] = linear.get(name, 0) + own * factor
        return Index(linear_text(linear), level, linear)
    texts = [f"({index.text}) * {factor}" for index, factor in parts if index.text != "0"]
    return Index(" + ".join([*texts, *([str(constant)] if constant else [])]) or "0", level)


def linear_text(linear: dict[str, int]) -> str:
    terms = [name if factor == 1 else f"{name} * {factor}" for name, factor in linear.items() if name and factor]
    return " + ".join([*terms, *([str(linear[""])] if linear.get("", 0) or not terms else [])])


def flat_index(shape: tuple[int, ...], indices: list[Index]) -> Index:
    """Where an element lies in an array that holds the tensor row by row."""
    return weighted_sum([(index, math.prod(shape[d + 1 :])) for d, index in enumerate(indices)])


def reshaped(shape: tuple[int, ...], indices: list[Index], before: tuple[int, ...]) -> list[Index]:
    """The indices before a reshape to `shape`: of the element that is at `indices` after it.

    Dimensions are taken in groups of the same size on both sides, so that indices stay linear where nothing is split.
    """
    answer: list[Index] = []
    i = j = 0
    while j < len(before):
        first, start = i, j
        new, old = 1, before[j]
        j += 1
        while new != old:
            if new < old:
                new *= shape[i]
                i += 1
            else:
                old *= before[j]
                j += 1
        flat = flat_index(shape[first:i], indices[first:i])
        answer += _split(before[start:j], flat)
    return answer


def _split(shape: tuple[int, ...], flat: Index) -> list[Index]:
    answer = []
    for d, size in enumerate(shape):
        below = math.prod(shape[d + 1 :])
        if size == 1:
            answer.append(ZERO)
        elif below == 1 and math.prod(shape[:d]) == 1:
            answer.append(flat)
        else:
            divided = f"({flat.text}) / {below}" if below > 1 else f"({flat.text})"
            answer.append(Index(f"({divided} % {size})", flat.level))
    return answer


class Nest:
    """Loops over a shape, outermost dimension first unless `inner` names another innermost one.

    Lines are put at a level: level 0 before the loops, level d into the d-th loop; `after` follow the inner loop.
    `memo` holds computed elements, by value and indices, so that no element is computed twice.
    """

    def __init__(self, number: int, shape: tuple[int, ...], inner: int | None = None) -> None:
        self.shape = shape
        self.dims = [d for d, size in enumerate(shape) if size > 1 and d != inner]
        if inner is not None and shape[inner] > 1:
            self.dims.append(inner)
        self.depth = self.factored = len(self.dims)  # addresses are linear in the variables from level `factored` on
        self.variables = [f"i{number}_{d}" for d in self.dims]
        self.indices = [ZERO] * len(shape)
        for level, (d, name) in enumerate(zip(self.dims, self.variables, strict=True), 1):
            self.indices[d] = Index(name, level, {"": 0, name: 1})
        self.lines: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.after: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.low, self.high = "0", str(self.size)
        self.num_guards = 0
        self.pragma = "INDEPENDENT"  # of the innermost loop
        self.memo: dict = {}
        self.levels: dict = {}
        self.holds: set = set()  # conditions that guards and bounds ensure, by value and indices

    @property
    def inner(self) -> str:
        """The innermost variable, '' without loops."""
        return self.variables[-1] if self.variables else ""

    @property
    def size(self) -> int:
        """Turns of the innermost loop."""
        return self.shape[self.dims[-1]] if self.dims else 1

    @property
    def row_level(self) -> int:
        """The level just outside the innermost loop."""
        return max(self.depth - 1, 0)

    def add(self, line: str) -> None:
        """A line of the innermost level."""
        self.lines[-1].append(line)

    def guard(self, condition: str) -> None:
        """A condition of all that is written into the nest from here on."""
        self.lines[0].append(f"if ({condition}) {{")
        self.num_guards += 1

    def named(self, level: int, kind: str, text: str, name: str) -> str:
        """The text, computed once into a constant of this name unless it is a name already."""
        if re.fullmatch(r"[\w.]+", text):
            return text
        self.lines[level].append(f"{kind} const {name} = {text};")
        return name

    def text(self) -> list[str]:
        """The C lines of the nest, in braces."""
        out = ["{", *self.lines[0]]
        for level, name in enumerate(self.variables, 1):
            is_inner = level == self.depth
            low, high = (self.low, self.high) if is_inner else ("0", str(self.shape[self.dims[level - 1]]))
            out += [self.pragma] if is_inner and self.pragma else []
            out += [f"for (int {name} = {low}; {name} < {high}; {name}++) {{", *self.lines[level]]
        for level in range(self.depth, 0, -1):
            out += [*self.after[level], "}"]
        return [*out, *self.after[0], *["}"] * self.num_guards, "}"]
