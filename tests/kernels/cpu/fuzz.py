"""Random Triton kernels: `python -m tests.kernels.cpu.fuzz FILE SEED ...` runs some in Triton's interpreter.

A kernel takes integers and floats from memory and combines them at random: arithmetic, broadcasts, reductions, scans,
products, masks, gathers, loops and branches. All of its floats are whole numbers within [-64, 64], so that every result
is exact, in any order of sums.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
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
    "tl.floor({a} / 4.0) + {b}", "({a} + {b}).to(tl.bfloat16).to(tl.float32)", "({a} - {b}).to(tl.float16).to(tl.float32)",
]  # fmt: skip
COMPARISONS = [f"{{a}} {sign} {{b}}" for sign in ("<", "<=", ">", ">=", "==", "!=")]
LOGIC = ["{a} & {b}", "{a} | {b}", "{a} ^ {b}", "({a}) & ({b} == 0)"]
ARRANGED = ["tl.trans({a})", "tl.reshape(tl.trans(tl.reshape({a}, [8, 32])), [16, 16])"]


class Writer:
    """Writes one kernel; `values` are (name, 'int' | 'float' | 'bool', shape) that later statements may use."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, str, str]] = [("n", "int", "scalar"), ("m", "int", "rows")]
        self.indent = "    "
        self.num_names = 0

    def add(self, kind: str, shape: str, text: str) -> str:
        self.num_names += 1
        name = f"v{self.num_names}"
        if kind == "float":  # whole numbers of 7 bits
            text = f"tl.minimum(tl.maximum({text}, -64.0), 64.0)"
        self.lines.append(f"{self.indent}{name} = {text}")
        self.values.append((name, kind, shape))
        return name

    def pick(self, kind: str, shapes: tuple[str, ...] = SHAPES) -> tuple[str, str]:
        """(name, shape) of a value, the newest more often; one is loaded if there is none."""
        found = [(name, shape) for name, k, shape in self.values if k == kind and shape in shapes]
        if not found:
            return self.load(kind, self.random.choice(shapes)), self.values[-1][2]
        return self.random.choice(found[-6:] if self.random.random() < 0.7 else found)

    def broadcast(self, name: str, shape: str, to: str) -> str:
        if to != "tile" or shape in ("tile", "scalar"):
            return name
        return f"{name}[:, None]" if shape == "rows" else f"{name}[None, :]"

    def pair(self, kind: str) -> tuple[str, str, str]:
        """Two operands, and the shape that they have together."""
        a, first = self.pick(kind)
        b, second = self.pick(kind)
        shapes = {first, second} - {"scalar"}
        shape = "scalar" if not shapes else shapes.pop() if len(shapes) == 1 else "tile"
        return self.broadcast(a, first, shape), self.broadcast(b, second, shape), shape

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

    # ---- statements

    def combine(self, kind: str, forms: list[str], answer: str = "") -> None:
        a, b, shape = self.pair(kind)
        self.add(answer or kind, shape, self.random.choice(forms).format(a=a, b=b))

    def convert(self) -> None:
        if self.random.random() < 0.5:
            a, shape = self.pick("int")
            self.add("float", shape, f"(({a} & 63) - 32).to(tl.float32)")
        else:
            a, shape = self.pick("float")
            self.add("int", shape, f"{a}.to(tl.int32)")

    def select(self) -> None:
        kind = self.random.choice(["int", "float"])
        a, b, shape = self.pair(kind)
        c, _ = self.pick("bool", (shape, "scalar"))
        self.add(kind, shape, f"tl.where({c}, {a}, {b})")

    def reduce(self) -> None:
        kind, how = self.random.choice(["int", "float"]), self.random.choice(["sum", "max", "min"])
        a, shape = self.pick(kind, self.random.choice([("tile",), ("tile",), ("rows", "columns")]))
        axis = self.random.choice([0, 1]) if shape == "tile" else 0
        answer = ("rows" if axis else "columns") if shape == "tile" else "scalar"
        self.add(kind, answer, f"tl.{how}({a}, axis={axis})")

    def scan(self) -> None:
        a, shape = self.pick("int", ("tile", "rows"))
        self.add("int", shape, f"tl.cumsum({a}, axis={self.random.choice([0, 1]) if shape == 'tile' else 0})")

    def arrange(self) -> None:
        kind = self.random.choice(["int", "float"])
        self.add(kind, "tile", self.random.choice(ARRANGED).format(a=self.pick(kind, ("tile",))[0]))

    def product(self) -> None:
        (a, _), (b, _) = self.pick("float", ("tile",)), self.pick("float", ("tile",))
        b = self.random.choice([b, f"tl.trans({b})"])
        narrow = self.random.choice(["", ".to(tl.float16)"])
        start = self.random.choice(["", f", acc={self.pick('float', ('tile',))[0]}"])
        self.add("float", "tile", f"tl.dot(({a}){narrow}, ({b}){narrow}{start}, input_precision='ieee')")

    def gather(self) -> None:
        index, shape = self.pick("int")
        if self.random.random() < 0.5:
            self.add("int", shape, f"tl.load(int_ptr + ({index} & 255))")
        else:  # a mask that depends on data
            self.add("int", shape, f"tl.load(int_ptr + {index}, mask=({index} >= 0) & ({index} < 256), other=-3)")

    def store(self) -> None:
        """Something is written, and read again in another order."""
        a, _ = self.pick("int", ("tile",))
        condition, _ = self.pick("bool", ("tile", "scalar"))
        mask = self.random.choice(["", ", mask=place < n * 16", ", mask=m[:, None] < n", f", mask={condition}"])
        self.lines.append(f"{self.indent}tl.store(out_int_ptr + place, {a}{mask})")
        self.lines.append(f"{self.indent}tl.debug_barrier()")
        self.add("int", "tile", "tl.load(out_int_ptr + place)")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """A few statements of a loop or a branch; what they make is not seen after it."""
        self.lines.append(f"    {header}:")
        before, self.indent = len(self.values), "        "
        if "turn" in header:
            self.add("int", "scalar", "n * 0 + turn")
        for _ in range(self.random.randrange(1, 4)):
            self.statement()
        yield
        del self.values[before:]
        self.indent = "    "

    def loop(self) -> None:
        """A few turns, which carry an integer and a float."""
        (a, first), (b, second) = self.pick("int", ("tile", "rows", "scalar")), self.pick("float", ("tile", "rows"))
        x, y = self.add("int", first, f"{a} + 0"), self.add("float", second, f"{b} + 0.0")
        with self.block(f"for turn in range({self.random.choice(['3', 'n & 3', '(n & 1) * 2'])})"):
            c, _ = self.pick("int", (first, "scalar"))
            d, _ = self.pick("float", (second, "scalar"))
            self.lines.append(f"{self.indent}{x} = {x} * 3 + {c}")
            self.lines.append(f"{self.indent}{y} = tl.minimum(tl.maximum({y} - {d}, -64.0), 64.0)")

    def branch(self) -> None:
        a, shape = self.pick("int", ("tile", "rows"))
        x = self.add("int", shape, f"{a} - 1")
        condition, _ = self.pick("int", ("scalar",))
        with self.block(f"if ({condition} & 1) == 0"):
            c, _ = self.pick("int", (shape, "scalar"))
            self.lines += [f"        {x} = {x} ^ {c}", "    else:", f"        {x} = {x} + 5"]

    def statement(self) -> None:
        kind = self.random.choice(["int", "float"])
        weighted = [
            (5, partial(self.combine, "int", INTEGERS)), (5, partial(self.combine, "float", FLOATS)),
            (2, partial(self.combine, kind, COMPARISONS, "bool")), (1, partial(self.combine, "bool", LOGIC)),
            (3, self.select), (3, self.reduce), (1, self.convert), (1, self.scan), (1, self.arrange), (1, self.product),
            (1, self.gather), (1, self.store),
        ]  # fmt: skip
        if self.indent == "    ":
            weighted += [(1, self.loop), (1, self.branch)]
        weights, statements = zip(*weighted, strict=True)
        self.random.choices(statements, weights)[0]()

    def write(self) -> list[str]:
        """The lines of the kernel."""
        self.load("int", "tile")
        self.load("float", "tile")
        for _ in range(self.random.randrange(6, 18)):
            self.statement()
        results = [value for value in self.values[2:] if value[1] != "bool"]
        for row, (name, kind, shape) in enumerate(results, 1):
            place = {"tile": "place", "scalar": "0"}.get(shape, "m")
            self.lines.append(f"    tl.store(out_{kind}_ptr + {256 * row} + {place}, {name})")
        return [line.removeprefix("    ") for line in self.lines]


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
