"""Random Triton kernels: `python -m tests.kernels.cpu.fuzz MODE FOLDER SEED ...` runs some and keeps what they wrote.

MODE is 'interpreted', 'compiled' or 'emulated'; each needs a process of its own. A kernel takes integers and floats
from memory and combines them at random: arithmetic, broadcasts, reductions, scans, products, masks, gathers, loops and
branches. All of its floats are whole numbers within [-64, 64], so that every result is exact, in any order of sums.
"""

import importlib.util
import os
import random
import sys
from pathlib import Path

M = N = 16  # of tiles; products need 16
SHAPES = {"tile": "[16, 16]", "rows": "[16]", "columns": "[16]", "scalar": "[]"}
HEADER = """import triton
import triton.language as tl


@triton.jit
def fuzzed(int_ptr, float_ptr, out_int_ptr, out_float_ptr, n, half_ptr):
    m = tl.arange(0, 16)
    place = m[:, None] * 16 + m[None, :]
"""


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

    def pick(self, kind: str, shapes: tuple[str, ...] = tuple(SHAPES)) -> tuple[str, str]:
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

    def arithmetic(self) -> None:
        a, b, shape = self.pair("int")
        forms = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "tl.minimum({a}, {b})",
                 "tl.maximum({a}, {b})", "({a} & 0xFFFFF) // (({b} & 7) + 1)", "({a} & 0xFFFFF) % (({b} & 7) + 1)",
                 "{a} << ({b} & 7)", "{a} >> ({b} & 7)", "{a} // 5", "{a} % 16", "({a} + 0 * {b}).to(tl.int8).to(tl.int32)",
                 "({a} * 1 + {b}).to(tl.int64).to(tl.int32)"]  # fmt: skip
        self.add(
            "int", shape, self.random.choice(forms).format(a=a, b=b) + (f" + 0 * {b}" if shape != "scalar" else "")
        )

    def float_arithmetic(self) -> None:
        a, b, shape = self.pair("float")
        forms = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "tl.minimum({a}, {b})", "tl.maximum({a}, {b})", "tl.abs({a}) - {b}",
                 "tl.floor({a} / 4.0) + {b}", "({a} + {b}).to(tl.bfloat16).to(tl.float32)", "({a} - {b}).to(tl.float16).to(tl.float32)"]  # fmt: skip
        self.add(
            "float", shape, self.random.choice(forms[:-2] if self.random.random() < 0.7 else forms).format(a=a, b=b)
        )

    def convert(self) -> None:
        if self.random.random() < 0.5:
            a, shape = self.pick("int")
            self.add("float", shape, f"(({a} & 63) - 32).to(tl.float32)")
        else:
            a, shape = self.pick("float")
            self.add("int", shape, f"{a}.to(tl.int32)")

    def compare(self) -> None:
        a, b, shape = self.pair(self.random.choice(["int", "float"]))
        self.add("bool", shape, f"{a} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {b}")

    def logic(self) -> None:
        a, b, shape = self.pair("bool")
        self.add(
            "bool",
            shape,
            self.random.choice(["{a} & {b}", "{a} | {b}", "{a} ^ {b}", "({a}) & ({b} == 0)"]).format(a=a, b=b),
        )

    def select(self) -> None:
        kind = self.random.choice(["int", "float"])
        a, b, shape = self.pair(kind)
        c, _ = self.pick("bool", (shape, "scalar"))
        self.add(kind, shape, f"tl.where({c}, {a}, {b})")

    def reduce(self) -> None:
        kind = self.random.choice(["int", "float"])
        a, _ = self.pick(kind, ("tile",))
        how = self.random.choice(["sum", "max", "min"])
        axis = self.random.choice([0, 1])
        self.add(kind, "rows" if axis else "columns", f"tl.{how}({a}, axis={axis})")

    def reduce_row(self) -> None:
        kind = self.random.choice(["int", "float"])
        a, _ = self.pick(kind, ("rows", "columns"))
        self.add(kind, "scalar", f"tl.{self.random.choice(['sum', 'max', 'min'])}({a}, axis=0)")

    def scan(self) -> None:
        a, shape = self.pick("int", ("tile", "rows"))
        self.add("int", shape, f"tl.cumsum({a}, axis={self.random.choice([0, 1]) if shape == 'tile' else 0})")

    def arrange(self) -> None:
        kind = self.random.choice(["int", "float"])
        a, _ = self.pick(kind, ("tile",))
        forms = [
            "tl.trans({a})",
            "tl.reshape(tl.trans(tl.reshape({a}, [8, 32])), [16, 16])",
            "tl.reshape(tl.join(tl.reshape({a}, [256]), tl.reshape({a} + 1, [256])), [32, 16])",
        ]
        text = self.random.choice(forms[:2]).format(a=a)
        self.add(kind, "tile", text)

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
        masks = ["", ", mask=place < n * 16", ", mask=m[:, None] < n", f", mask={condition}"]
        mask = self.random.choice(masks)
        self.lines.append(f"{self.indent}tl.store(out_int_ptr + place, {a}{mask})")
        self.lines.append(f"{self.indent}tl.debug_barrier()")
        self.add("int", "tile", "tl.load(out_int_ptr + place)")

    def loop(self) -> None:
        """A few turns, which carry an integer and a float."""
        if self.indent != "    ":
            return
        (a, first), (b, second) = self.pick("int", ("tile", "rows", "scalar")), self.pick("float", ("tile", "rows"))
        x, y = self.add("int", first, f"{a} + 0"), self.add("float", second, f"{b} + 0.0")
        self.lines.append(f"    for turn in range({self.random.choice(['3', 'n & 3', '(n & 1) * 2'])}):")
        before = len(self.values)
        self.indent = "        "
        self.add("int", "scalar", "n * 0 + turn")
        for _ in range(self.random.randrange(1, 4)):
            self.statement()
        c, _ = self.pick("int", (first, "scalar"))
        d, _ = self.pick("float", (second, "scalar"))
        self.lines.append(f"{self.indent}{x} = {x} * 3 + {c}")
        self.lines.append(f"{self.indent}{y} = tl.minimum(tl.maximum({y} - {d}, -64.0), 64.0)")
        self.indent = "    "
        del self.values[before:]

    def branch(self) -> None:
        if self.indent != "    ":
            return
        a, shape = self.pick("int", ("tile", "rows"))
        x = self.add("int", shape, f"{a} - 1")
        condition, _ = self.pick("int", ("scalar",))
        self.lines.append(f"    if ({condition} & 1) == 0:")
        before = len(self.values)
        self.indent = "        "
        for _ in range(self.random.randrange(1, 3)):
            self.statement()
        c, _ = self.pick("int", (shape, "scalar"))
        self.lines += [f"        {x} = {x} ^ {c}", "    else:", f"        {x} = {x} + 5"]
        self.indent = "    "
        del self.values[before:]

    def statement(self) -> None:
        choices = [self.arithmetic] * 5 + [self.float_arithmetic] * 5 + [self.select] * 3 + [self.reduce] * 2
        choices += [self.convert, self.compare, self.compare, self.logic, self.reduce_row, self.scan, self.arrange]
        choices += [self.product, self.gather, self.store, self.loop, self.branch]
        self.random.choice(choices)()

    def write(self) -> str:
        self.load("int", "tile")
        self.load("float", "tile")
        for _ in range(self.random.randrange(6, 18)):
            self.statement()
        row = 1
        for name, kind, shape in self.values[2:]:
            if kind == "bool":
                continue
            pointer = f"out_{kind}_ptr + {256 * row}"
            place = {"tile": "place", "rows": "m", "columns": "m", "scalar": "0"}[shape]
            self.lines.append(f"    tl.store({pointer} + {place}, {name})")
            row += 1
        return HEADER + "\n".join(self.lines) + "\n"


def inputs(seed: int) -> tuple:
    import torch

    generator = torch.Generator().manual_seed(seed)
    ints = torch.randint(-1000, 1000, (1024,), dtype=torch.int32, generator=generator)
    floats = torch.randint(-20, 20, (1024,), generator=generator).float()
    return ints, floats, torch.zeros(256 * 80, dtype=torch.int32), torch.zeros(256 * 80), seed % 13 + 2, floats.half()


def main() -> None:
    mode, folder, *seeds = sys.argv[1:]
    if mode == "interpreted":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    if mode == "compiled":
        import triton_on_cpu

        triton_on_cpu.install()
    results = {}
    for seed in map(int, seeds):
        path = Path(folder, f"fuzzed_{seed}.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        arguments = inputs(seed)
        if mode == "emulated":
            from ptx_emulator import emulate

            emulate(module.fuzzed, (1,), arguments)
        else:
            module.fuzzed[(1,)](*arguments)
        results[seed] = arguments[2:4]
    torch.save(results, Path(folder, f"{mode}.pt"))


if __name__ == "__main__":
    main()
