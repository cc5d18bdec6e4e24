"""Addresses of elements: which part of one is known outside of the innermost loop, and how far apart neighbours lie.

An offset is taken apart into loop variables times factors and a rest. The rest is added to the pointer outside of the
loop, which then runs over memory by fixed steps; an offset that has no such form is computed in the loop.
"""

import re
from dataclasses import dataclass, replace

from triton_on_cpu import elements
from triton_on_cpu.elements import kind_of
from triton_on_cpu.kernel import Kernel
from triton_on_cpu.nest import Index, Nest, linear_text, weighted_sum
from triton_on_cpu.ttir import Value

LONG_TEXT = 200  # a longer text gets a name: each sum of sums would double it


@dataclass(frozen=True)
class Affine:
    """An integer element as `rest`, which is known from `level` on, plus loop variables times factors.

    A factor is a number where it is known, else C. By `nest.factored` variables have one: as a rule the innermost.
    """

    factors: dict[str, int | str]
    rest: str
    level: int


@dataclass(frozen=True)
class Address:
    """Where an element lies: `base[at]`. `base` is known outside of the innermost loop.

    `step`: elements from one pass of that loop to the next, None if they are not the same distance apart; `steps`: the
    same of each loop whose variable is a factor of its own.
    """

    base: str
    at: str
    step: int | str | None
    steps: dict[str, int | str]


def affine_form(kernel: Kernel, nest: Nest, value: Value, indices: list[Index]) -> Affine | None:
    """An integer element's form in the nest's factored variables. Sums are taken not to overflow."""
    if kernel.level(nest, value, indices) < nest.factored or not nest.depth:
        return Affine({}, kernel.element(nest, value, indices), kernel.level(nest, value, indices))
    if value in kernel.array:
        return None
    if value in kernel.running:
        first, offset = kernel.running[value]
        found = affine_form(kernel, nest, first, indices)
        return found and replace(found, rest=f"({found.rest} + {offset})")
    op = value.op
    if op.name == "tt.make_range":
        return _affine_index(nest, weighted_sum([(indices[0], 1)], op.integer("start")))
    source = kernel.sources(value, indices)
    if source is not None:
        return affine_form(kernel, nest, *source)
    if op.name in ("arith.extsi", "arith.index_cast"):
        return affine_form(kernel, nest, op.operands[0], indices)
    if op.name in ("arith.addi", "arith.subi", "arith.muli"):
        key = "affine", value, tuple(indices)
        if key not in nest.memo:
            a, b = (affine_form(kernel, nest, x, indices) for x in op.operands)
            found = None if a is None or b is None else _combined(op.name, a, b)
            if found is not None and len(found.rest) > LONG_TEXT:
                found = replace(found, rest=nest.named(found.level, "int64_t", found.rest, kernel.fresh("n")))
            nest.memo[key] = found
        return nest.memo[key]
    return None


def address_of(kernel: Kernel, nest: Nest, pointer: Value, indices: list[Index]) -> Address:
    """Where an element of a tensor of pointers points to."""
    terms: list[Affine | str] = []  # offsets; a text is computed in the innermost loop
    steps: dict[str, int | str] = {}
    while pointer.type.shape and pointer not in kernel.array:
        if pointer in kernel.running:
            pointer, moved = kernel.running[pointer]
            terms.append(Affine({}, moved, 0))
        elif pointer.op.name == "tt.addptr":
            pointer, offset = pointer.op.operands
            terms.append(affine_form(kernel, nest, offset, indices) or kernel.element(nest, offset, indices))
        else:
            source = kernel.sources(pointer, indices)
            if source is None:
                break
            pointer, indices = source
    base, level = kernel.element(nest, pointer, indices), kernel.level(nest, pointer, indices)
    outer, inner = [], []
    for term in terms:
        if isinstance(term, str):
            inner.append(f"(int64_t)({term})")
            continue
        steps = _summed(steps, term.factors)
        level = max(level, term.level)
        outer += [f"(int64_t){term.rest}"] if term.rest not in ("0", "(0)") else []
    if outer:
        key = base, tuple(outer)
        if key not in nest.memo:
            text = " + ".join([base, *outer])
            nest.memo[key] = nest.named(level, kind_of(pointer.type.element).value, text, kernel.fresh("p"))
        base = nest.memo[key]
    inner += [name if step == 1 else f"{name} * (int64_t)({step})" for name, step in steps.items() if step != 0]
    is_affine = not any(isinstance(term, str) for term in terms) and (not nest.depth or level < nest.factored)
    return Address(base, " + ".join(inner) or "0", steps.get(nest.inner, 0) if is_affine else None, steps)


def _affine_index(nest: Nest, index: Index) -> Affine | None:
    if index.linear is None:
        return None
    own = {name: factor for name, factor in index.linear.items() if name in nest.variables[nest.factored - 1 :]}
    rest = {name: factor for name, factor in index.linear.items() if name not in own}
    level = max((nest.variables.index(name) + 1 for name, factor in rest.items() if name and factor), default=0)
    return Affine({name: factor for name, factor in own.items() if factor}, f"({linear_text(rest)})", level)


def _sum(a: int | str, b: int | str) -> int | str:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else f"({a} + {b})"


def _summed(a: dict[str, int | str], b: dict[str, int | str]) -> dict[str, int | str]:
    return {name: _sum(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}


def _times(factor: int | str, number: str) -> int | str:
    """A factor times C, which may be a number."""
    found = re.fullmatch(r"\(?(-?\d+)\)?|INT64_C\((-?\d+)\)", number)
    if found and isinstance(factor, int):
        return factor * int(found[1] or found[2])
    return f"({factor}) * (int64_t){number}"


def _combined(name: str, a: Affine, b: Affine) -> Affine | None:
    level = max(a.level, b.level)
    rest = f"((int64_t){a.rest} {elements.WRAPPING[name.split('.')[1]]} (int64_t){b.rest})"
    if name != "arith.muli":
        sign = "1" if name == "arith.addi" else "-1"
        return Affine(_summed(a.factors, {x: _times(factor, sign) for x, factor in b.factors.items()}), rest, level)
    if a.factors and b.factors:
        return None
    a, b = (a, b) if a.factors else (b, a)  # now b is known outside
    return Affine({x: _times(factor, b.rest) for x, factor in a.factors.items()}, rest, level)
