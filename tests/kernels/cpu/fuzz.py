"""Random Triton kernels: `python -m tests.kernels.cpu.fuzz FILE SEED ...` runs some in Triton's interpreter.

A kernel takes integers and floats from memory and combines them at random: arithmetic, broadcasts, reductions, scans,
products, masks, gathers, loops and branches. All of its floats are whole numbers within [-64, 64], so that every result
is exact, in any order of sums.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ptx_emulator import emulate
from tests.kernels.cpu.harness import run
from tests.kernels.cpu.small_kernels import written

SHAPES = ("tile", "rows", "columns", "scalar")  # [16, 16], [16], [16], []
SIGNATURE = "fuzzed(int_ptr, float_ptr, out_int_ptr, out_float_ptr, n, half_ptr)"
BEGIN = ["m = tl.arange(0, 16)", "place = m[:, None] * 16 + m[None, :]"]
INTEGERS = [
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "tl.minimum({a}, {b})",
    "tl.maximum({a}, {b})", "({a} & 0xFFFFF) // (({b} & 7) + 1)", "({a} & 0xFFFFF) % (({b} & 7) + 1)", "{a} << ({b} & 7)",
    "{a} >> ({b} & 7)", "{a} // 5 + 0 * {b}", "{a} % 16 + 0 * {b}", "({a} + 0 * {b}).to(tl.int8).to(tl.int32)",
    "({a} * 1 + {b}).to(tl.int64).to(tl.int32)",
]  # fmt: skip
FLOATS = [
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "tl.minimum({a}, {b})", "tl.maximum({a}, {b})", "tl.abs({a}) - {b}",
    "tl.floor({a} / 4.0) + {b}",
]  # fmt: skip
ROUNDED = ["({a} + {b}).to(tl.bfloat16).to(tl.float32)", "({a} - {b}).to(tl.float16).to(tl.float32)"]
COMPARISONS = [f"{{a}} {sign} {{b}}" for sign in ("<", "<=", ">", ">=", "==", "!=")]
LOGIC = ["{a} & {b}", "{a} | {b}", "{a} ^ {b}", "({a}) & ({b} == 0)"]
ARRANGED = ["tl.trans({a})", "tl.reshape(tl.trans(tl.reshape({a}, [8, 32])), [16, 16])"]
GATHERED = [
    "tl.load(int_ptr + ({a} & 255))",
    "tl.load(int_ptr + {a}, mask=({a} >= 0) & ({a} < 256), other=-3)",  # a mask that depends on data
]
PRODUCTS = [
    f"tl.dot(({{a}}){narrow}, {b}{narrow}{start}, input_precision='ieee')"
    for narrow in ("", ".to(tl.float16)") for b in ("({b})", "tl.trans({b})") for start in ("", ", acc={c}")
]  # fmt: skip
REDUCED = (("rows", 1, "tile"), ("columns", 0, "tile"), ("scalar", 0, "rows"), ("scalar", 0, "columns"))
# How often, of which kind (and shape, if it is not the operands'), in which forms, of what.
STATEMENTS = [
    (5, "int", INTEGERS, ("int", "int")), (5, "float", FLOATS, ("float", "float")),
    (1, "float", ROUNDED, ("float", "float")), (1, "bool", LOGIC, ("bool", "bool")),
    (1, "float", ["(({a} & 63) - 32).to(tl.float32)"], ("int",)), (1, "int", ["{a}.to(tl.int32)"], ("float",)),
    (1, "float tile", PRODUCTS, ("float tile",) * 3), (1, "int", GATHERED, ("int",)),
    (1, "int tile", ["tl.cumsum({a}, axis=0)", "tl.cumsum({a}, axis=1)"], ("int tile",)),
    (1, "int rows", ["tl.cumsum({a}, axis=0)"], ("int rows",)),
]  # fmt: skip
for kind in ("int", "float"):
    STATEMENTS += [
        (1, "bool", COMPARISONS, (kind, kind)), (2, kind, ["tl.where({c}, {a}, {b})"], (kind, kind, "bool")),
        (1, f"{kind} tile", ARRANGED, (f"{kind} tile",)),
    ]  # fmt: skip
    for to, axis, shape in REDUCED:
        forms = [f"tl.{how}({{a}}, axis={axis})" for how in ("sum", "max", "min")]
        STATEMENTS.append((1, f"{kind} {to}", forms, (f"{kind} {shape}",)))


class Writer:
    """Writes one kernel; `values` are (name, 'int' | 'float' | 'bool', shape) that later statements may use."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, str, str]] = [("n", "int", "scalar"), ("m", "int", "rows")]
        self.indent = ""
        self.num_names = 0

    def add(self, kind: str, shape: str, text: str) -> str:
        self.num_names += 1
        name = f"v{self.num_names}"
        if kind == "float":  # whole numbers of 7 bits
            text = f"tl.minimum(tl.maximum({text}, -64.0), 64.0)"
        self.lines.append(f"{self.indent}{name} = {text}")
        self.values.append((name, kind, shape))
        return name

    def pick(self, kind: str, shape: str = "") -> tuple[str, str]:
        """(name, shape) of a value, the newest more often; one is loaded if there is none."""
        found = [(name, own) for name, k, own in self.values if k == kind and own in (shape or SHAPES)]
        if not found:
            shape = shape or self.random.choice(SHAPES)
            return self.load(kind, shape), shape
        return self.random.choice(found[-6:] if self.random.random() < 0.7 else found)

    def load(self, kind: str, shape: str) -> str:
        offset = self.random.randrange(0, 200)
        index = {"tile": "place", "rows": "m", "columns": "m * 3", "scalar": "n"}[shape]
        if kind == "bool":
            return self.add("bool", shape, f"tl.load(int_ptr + {offset} + {index}) > {self.random.randrange(-20, 20)}")
        pointer = "int_ptr" if kind == "int" else self.random.choice(["float_ptr", "half_ptr"])
        mask = ""
        if shape != "scalar" and self.random.random() < 0.5:
            bound = self.random.choice(["n", "n * 16", "7", "100", "256"])
            mask = f", mask={index} < {bound}, other={self.random.randrange(-5, 5)}"
        text = f"tl.load({pointer} + {offset} + {index}{mask})"
        return self.add(kind, shape, f"{text}.to(tl.float32)" if kind == "float" else text)

    def combine(self, answer: str, forms: list[str], operands: tuple[str, ...]) -> None:
        """A row of the table."""
        picked = [self.pick(*operand.split()) for operand in operands]
        shapes = {shape for _, shape in picked} - {"scalar"}
        shape = "tile" if len(shapes) > 1 else next(iter(shapes), "scalar")
        spread = {"rows": "[:, None]", "columns": "[None, :]"} if shape == "tile" else {}
        texts = {letter: name + spread.get(own, "") for letter, (name, own) in zip("abc", picked, strict=False)}
        kind, *given = answer.split()
        self.add(kind, *given or [shape], self.random.choice(forms).format(**texts))

    def store(self) -> None:
        """Something is written, and read again in another order."""
        a, _ = self.pick("int", "tile")
        masks = ["", ", mask=place < n * 16", ", mask=m[:, None] < n", f", mask={self.pick('bool', 'tile')[0]}"]
        self.lines.append(f"{self.indent}tl.store(out_int_ptr + place, {a}{self.random.choice(masks)})")
        self.lines.append(f"{self.indent}tl.debug_barrier()")
        self.add("int", "tile", "tl.load(out_int_ptr + place)")

    @contextmanager
    def inside(self, header: str) -> Iterator[None]:
        """A loop or a branch, with some statements; what they name is not seen behind it."""
        before = len(self.values)
        self.lines.append(header)
        self.indent = "    "
        self.add("int", "scalar", "n * 0 + turn" if header.startswith("for") else "n - 1")
        for _ in range(self.random.randrange(1, 4)):
            self.statement()
        yield
        self.indent = ""
        del self.values[before:]

    def loop(self, shape: str) -> None:
        """A few turns, which carry an integer and a float."""
        (a, _), (b, _) = self.pick("int", shape), self.pick("float", shape)
        x, y = self.add("int", shape, f"{a} + 0"), self.add("float", shape, f"{b} + 0.0")
        with self.inside(f"for turn in range({self.random.choice(['3', 'n & 3', '(n & 1) * 2'])}):"):
            (c, _), (d, _) = self.pick("int", shape), self.pick("float", shape)
            self.lines += [f"    {x} = {x} * 3 + {c}", f"    {y} = tl.minimum(tl.maximum({y} - {d}, -64.0), 64.0)"]

    def branch(self, shape: str) -> None:
        a, _ = self.pick("int", shape)
        x, (condition, _) = self.add("int", shape, f"{a} - 1"), self.pick("int", "scalar")
        with self.inside(f"if ({condition} & 1) == 0:"):
            self.lines.append(f"    {x} = {x} ^ {self.pick('int', shape)[0]}")
        self.lines += ["else:", f"    {x} = {x} + 5"]

    def statement(self) -> None:
        rows = [(often, self.combine, row) for often, *row in STATEMENTS] + [(1, self.store, ())]
        if not self.indent:
            rows += [(1, nested, (self.random.choice(["tile", "rows"]),)) for nested in (self.loop, self.branch)]
        ((_, method, arguments),) = self.random.choices(rows, [often for often, *_ in rows])
        method(*arguments)

    def write(self) -> list[str]:
        """The lines of the kernel."""
        self.load("int", "tile")
        self.load("float", "tile")
        for _ in range(self.random.randrange(6, 18)):
            self.statement()
        results = [value for value in self.values[2:] if value[1] != "bool"]
        for row, (name, kind, shape) in enumerate(results, 1):
            place = {"tile": "place", "scalar": "0"}.get(shape, "m")
            self.lines.append(f"tl.store(out_{kind}_ptr + {256 * row} + {place}, {name})")
        return self.lines


def outputs(seed: int, how: str) -> list[Any]:
    """What a kernel writes: [int32, float]. `how` is 'interpreted', 'compiled' or 'emulated'."""
    kernel, generator = written(SIGNATURE, BEGIN, Writer(seed).write()), torch.Generator().manual_seed(seed)
    ints = torch.randint(-1000, 1000, (1024,), dtype=torch.int32, generator=generator)
    floats = torch.randint(-20, 20, (1024,), generator=generator).float()
    written_to = [torch.zeros(256 * 80, dtype=torch.int32), torch.zeros(256 * 80)]
    arguments = ints, floats, *written_to, seed % 13 + 2, floats.half()
    if how == "compiled":
        assert run(kernel, *arguments) is None
    elif how == "emulated":
        emulate(kernel, (1,), arguments)
    else:
        kernel[(1,)](*arguments)
    return written_to


def all_outputs(seeds: Iterable[int], how: str) -> list[list[Any]]:
    return [outputs(seed, how) for seed in seeds]


if __name__ == "__main__":
    torch.save(all_outputs(map(int, sys.argv[2:]), "interpreted"), sys.argv[1])
