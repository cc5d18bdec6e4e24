"""Loads, stores, atomics, masks, shapes, loops and branches, compiled; and what a checked kernel makes of a wrong access."""

import ctypes
import functools
import mmap
from pathlib import Path

import pytest
import torch

from tests.kernels.cpu import small_kernels as kernels
from tests.kernels.cpu.harness import build, in_child, optimised
from tests.kernels.cpu.harness import run as run_kernel

FP32, BF16 = torch.float32, torch.bfloat16
CHECKED = pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])


def numbers(*shape, dtype=FP32):
    return (torch.arange(torch.Size(shape).numel()) % 113 + 1).reshape(shape).to(dtype)


# The sizes of the kernels' tiles: of one dimension 16 elements, but
SIZES = {"copy_masked": {"N": 64}, "shift_in_place": {"N": 64}, "atomics": {"N": 32}, "tile": {"M": 8, "N": 32},
         "gathered_rows": {"M": 4, "N": 16}, "matmul": {"BM": 16, "BN": 32, "BK": 16}}  # fmt: skip


def run(kernel, *values, **options):
    sizes = SIZES.get(kernel.__name__, {"N": 16} if "N" in kernel.arg_names else {})
    return run_kernel(kernel, *values, **sizes, **options)


@CHECKED
@pytest.mark.parametrize("dtype", [FP32, torch.float16, BF16, torch.int32, torch.int8, torch.bool], ids=str)
def test_masked_copy(dtype, checked):
    """Four programs; the mask ends in the third, begins in the first."""
    x, out = numbers(256, dtype=dtype), torch.zeros(256, dtype=dtype)
    assert run(kernels.copy_masked, x, out, 150, 5, grid=(4,), checked=checked) is None
    expected = x.clone()
    expected[:5], expected[150:] = torch.tensor(-7).to(dtype), 0
    assert torch.equal(out, expected)


@functools.cache
def pages():
    """The address of four pages, of which the second and the fourth may not be touched."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    base = libc.mmap(None, 4 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.mprotect(ctypes.c_void_p(base + page), page, 0) == 0
    assert libc.mprotect(ctypes.c_void_p(base + 3 * page), page, 0) == 0
    return base


def last(n, page):
    """The last n floats of a page."""
    address = page + mmap.PAGESIZE - 4 * n
    return torch.frombuffer((ctypes.c_float * n).from_address(address), dtype=torch.float32)


@CHECKED
def test_what_a_mask_leaves_out_is_not_touched(checked):
    """The tensors end at a page's end, behind which nothing is mapped."""
    base = pages()
    x, out = last(70, base), last(70, base + 2 * mmap.PAGESIZE)
    x[:] = numbers(70)
    run(kernels.copy_masked, x, out, 70, 0, grid=(4,), checked=checked)
    assert torch.equal(out, x)
    rows = last(35, base + 2 * mmap.PAGESIZE).view(5, 7)
    run(kernels.tile, last(35, base).view(5, 7), rows, 5, 7, 7, 1, 7, 1, checked=checked)
    assert torch.equal(rows, 2 * x[35:].view(5, 7))
    index = torch.zeros(16, dtype=torch.int32)
    index[5:] = 1 << 20
    run(kernels.gathered, x, index, out, 5, checked=checked)


@CHECKED
@pytest.mark.parametrize(("rows", "columns"), [(8, 32), (5, 31), (17, 70), (1, 1)])
@pytest.mark.parametrize("how", ["any strides", "any strides, bf16", "contiguous rows", "contiguous columns"])
def test_tiles(how, rows, columns, checked):
    x = numbers(rows, columns, dtype=BF16 if "bf16" in how else FP32)
    out = torch.zeros_like(x) if how == "contiguous rows" else torch.zeros(columns, rows, dtype=x.dtype).T
    known = {"contiguous rows": {"x_column": 1, "out_column": 1}, "contiguous columns": {"x_column": 1, "out_row": 1}}
    known = known.get(how, {})
    if not known:
        x = torch.zeros(rows, 2, columns, dtype=x.dtype)[:, 0].copy_(x)
    names = ("x_row", "x_column", "out_row", "out_column")
    strides = [n for name, n in zip(names, (*x.stride(), *out.stride()), strict=True) if name not in known]
    grid = ((rows + 7) // 8, (columns + 31) // 32)
    assert run(kernels.tile, x, out, rows, columns, *strides, grid=grid, checked=checked, **known) is None
    assert torch.equal(out, x + x)


@CHECKED
@pytest.mark.parametrize("n", [-3, 0, 5, 15, 16, 40])
def test_every_way_to_write_a_bound(n, checked):
    i, x, out = torch.arange(16), numbers(16), torch.zeros(len(kernels.BOUNDS), 16)
    assert run(kernels.bounds, x, out, n, checked=checked) is None
    masks = (eval(text, {"i": i, "n": n, "N": 16}) for text in kernels.BOUNDS)
    assert torch.equal(out, torch.stack([torch.where(mask, x, 0.0) for mask in masks]))


def whole(*values):
    return torch.tensor(values, dtype=torch.int32)


def fibonacci(n):
    a, b, i = torch.arange(16), torch.arange(16) + 1, torch.arange(16)
    for _ in range(n):
        a, b = b, a + b
    return torch.stack([a, b, i + 2 * n]).int()


def cases():
    """Kernel, arguments, what some of them hold afterwards, by place; and the number of programs, unless it is 1."""
    x, out, i, zeros = numbers(16), torch.zeros(16), torch.arange(16), whole(*[0] * 16)
    index, mixed = torch.randint(0, 100, (16,), dtype=torch.int32), torch.randint(0, 1000, (100,), dtype=torch.int32)
    order, rows = torch.randperm(16, dtype=torch.int32), numbers(4, 16)
    gathered = torch.where(i < 11, numbers(100)[index.long()], 0.0)
    shifted = torch.cat([numbers(64)[1:50], torch.zeros(1), numbers(64)[50:]])
    counted = {
        1: torch.bincount(mixed % 4, minlength=4).int(),
        2: torch.stack([mixed.max(), mixed.min()]),
        3: torch.cat([mixed, whole(*[-9] * 100)]),
    }
    signs, turned = (torch.arange(320) % 3 - 1).float(), x.view(2, 8).T.reshape(2, 8).T.reshape(2, 8).T.reshape(16)
    return {
        "gathered": (kernels.gathered, (numbers(100), index, torch.full((16,), -1.0), 11), {2: gathered}),
        "all is read before anything is written": (kernels.shift_in_place, (numbers(64), 50), {0: shifted}),
        "read before a store and after it": (kernels.read_twice, (numbers(16), out), {1: 21 * x}),
        "read before a store, used after it": (kernels.overwritten, (numbers(16), out), {1: x}),
        "backwards": (kernels.backwards, (x, out, 11), {1: torch.cat([x[:11].flip(0), torch.zeros(5)])}),
        "one tensor for two arguments": (kernels.backwards, (y := numbers(16), y, 16), {1: x.flip(0)}),
        "gathered rows": (kernels.gathered_rows, (rows, order, torch.zeros(4, 16)), {2: rows[:, order.long()]}),
        "known bounds": (kernels.known_bounds, (x, out), {1: torch.where((i > 0) & (i < 15), x, 0.0)}),
        "atomics": (kernels.atomics, (mixed, whole(0, 0, 0, 0), whole(-1, 5000), whole(*[-9] * 200), 100), counted, 4),
        # Small integers, whose sums are exact in any order.
        "floats are added": (kernels.add_floats, (signs, torch.zeros(1)), {1: signs.sum()[None]}, 20),
        "compare and swap": (kernels.ticket, (whole(0), whole(*[-1] * 5), 5), {0: whole(1), 1: whole(0, 1, 1, 1, 1)}, 5),
        "while": (kernels.collatz, (whole(1, 2, 7, 27), zeros), {1: torch.cat([whole(0, 1, 16, 111), zeros[4:]])}, 4),
        "early return": (kernels.early, (whole(3, -4, 5, -6, 7), whole(*[0] * 5), 4), {1: whole(6, -1, 10, -1, 0)}, 5),
        **{
            f"carried tensors change places {n} times": (kernels.fibonacci, (torch.zeros(3, 16).int(), n), {0: fibonacci(n)})
            for n in (0, 1, 7)
        },
        "scalars change places": (kernels.change_places, (whole(0, 0), 1), {0: whole(2, 1)}),
        "the first branch": (kernels.choose, (i.int(), zeros.clone(), 3), {1: i.int() + 4}),
        "the other branch": (kernels.choose, (i.int(), zeros.clone(), -3), {1: i.int() * 3 - 8}),
        "arranged anew at each turn": (kernels.turning, (x, out, 3), {1: turned}),
        "moved by a tensor": (kernels.drift, (i.int() % 5, zeros.clone(), 4), {1: (i + 4 * (i % 5)).int()}),
    }  # fmt: skip


@CHECKED
@pytest.mark.parametrize("what", cases())
def test_cases(what, checked):
    kernel, values, expected, *grid = cases()[what]
    assert run(kernel, *values, grid=grid or (1,), checked=checked) is None
    for place, want in expected.items():
        assert torch.equal(values[place], want)


LIMIT = 2**31 - 1


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(0, 10, 1), (3, 10, 4), (5, 5, 1), (7, 2, 1), (-5, 5, 3), (LIMIT - 10, LIMIT, 7), (-LIMIT, -LIMIT + 3, 2)],
)
def test_counters(low, high, step):
    """A counter that would pass the largest int32 ends the loop all the same."""
    out = whole(0, 0)
    run(kernels.counts, out, low, high, step, checked=True, limit_s=5)
    turns = list(range(low, high, step))
    assert out.tolist() == [len(turns), turns[-1] if turns else -1]


# ---- checked kernels


def line_of(text):
    lines = Path(kernels.__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number


@pytest.mark.parametrize("dtype", [FP32, BF16, torch.int8], ids=str)
def test_a_read_too_far(dtype):
    """The second program's mask lets 70 elements through, where there are 66."""
    x, out = numbers(66, dtype=dtype), torch.zeros(128, dtype=dtype)
    fault = run(kernels.copy_masked, x, out, 70, 0, grid=(4,), checked=True)
    assert (fault.kind, fault.program, fault.argument) == ("load", (1, 0, 0), 0)
    assert fault.element == 66, "the first wrong one of the row"
    assert fault.line == line_of("x = tl.load(x_ptr + i, mask=(i < n) & (i >= low), other=-7)")


def test_a_write_too_far_is_not_made():
    storage = torch.zeros(80)
    fault = run(kernels.copy_masked, numbers(80), storage, 70, 0, grid=(2,), checked=True, extents={1: 66 * 4})
    assert (fault.kind, fault.program, fault.argument, fault.element) == ("store", (1, 0, 0), 1, 66)
    assert (storage[64:] == 0).all(), "the row with the wrong access is left out as a whole"
    assert torch.equal(storage[:64], numbers(80)[:64])


FAULTS = {  # kernel, arguments, extents: kind, program, argument, element
    "a negative index": (kernels.gathered, (numbers(10), whole(3, -2, *[0] * 14), torch.zeros(16), 2), {}, ("load", 0, 0, -2)),
    "an index too large": (kernels.gathered, (numbers(100), whole(*[30] * 16), torch.zeros(16), 5), {0: 120}, ("load", 0, 0, 30)),
    "a stride: 4 rows of 8 and 3": (kernels.tile, (numbers(5, 7), torch.zeros(5, 7), 5, 7, 8, 1, 7, 1), {}, ("load", 0, 0, 35)),
    "an atomic": (kernels.atomics, (whole(0, 1, 2, 3), whole(0, 0, 0), whole(*[0] * 4), whole(*[0] * 8), 4), {}, ("atomic", 0, 1, 3)),
    "a scalar": (kernels.early, (whole(*[1] * 5), whole(*[0] * 5), 5), {0: 8}, ("load", 2, 0, 2)),
    "what is not used": (kernels.read_more, (numbers(8), torch.zeros(16), 8), {0: 32}, ("load", 0, 0, 8)),
    "pointers that a loop moves": (kernels.matmul, (numbers(16, 40), numbers(40, 32), torch.zeros(16, 32), 16, 32, 40), {1: 4 * 32 * 39}, ("load", 0, 1, 39 * 32)),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_faults(what):
    kernel, values, extents, expected = FAULTS[what]
    grid = (5,) if kernel is kernels.early else (1,)
    fault = run(kernel, *values, grid=grid, checked=True, extents=extents)
    assert (fault.kind, fault.program[0], fault.argument, fault.element) == expected
    assert fault.line > 0


def test_the_first_fault_ends_the_launch():
    x, out = numbers(66), torch.zeros(64 * 50)
    run(kernels.copy_masked, x, out, 64 * 50, 0, grid=(50,), checked=True)
    assert (out[128:] == 0).all()


def test_what_was_not_read_is_not_a_number():
    """A masked load without `other`: in a checked kernel it shows where it is used."""
    x, out = numbers(16), torch.zeros(16)
    run(kernels.unread, x, out, 11, checked=True)
    assert torch.equal(out[:11], x[:11])
    assert out[11:].isnan().all()


def test_an_endless_loop_ends_when_it_is_told():
    x = torch.zeros(1, dtype=torch.int32)
    run(kernels.endless, x, checked=True, limit_s=0.05)
    assert x.item() == 0, "a program that was stopped writes nothing more"


@CHECKED
def test_addresses_of_many_steps(checked):
    """Code does not grow with the ways in which a value can be reached."""
    x, out = numbers(16), torch.zeros(16)
    run(kernels.doubled, x, out, 11, checked=checked)
    assert torch.equal(out, torch.where(torch.arange(16) < 11, x, 0.0))
    assert len(build(kernels.doubled, x, out, ctypes.c_int32(11), checked=checked, N=16)[1].c_source) < 30_000


@CHECKED
def test_one_tile_for_two_arguments(checked):
    run(kernels.tile, y := numbers(8, 32), y, 8, 32, 32, 32, checked=checked, x_column=1, out_column=1)
    assert torch.equal(y, 2 * numbers(8, 32))


@CHECKED
def test_masks_that_depend_on_data(checked):
    """What they leave out is not read, far away as it is."""
    index, out = torch.tensor([3, -(1 << 30), 0, -1] * 4, dtype=torch.int32), torch.full((16,), -5.0)
    in_child(lambda: run(kernels.filtered, numbers(10), index, out, checked=checked))
    assert run(kernels.filtered, numbers(10), index, out, checked=checked) is None
    assert out.tolist() == [4.0, -5.0, 1.0, -5.0] * 4


def test_masks_of_the_places_that_are_written():
    """Five numbers at the end of a page, and one that may not be read."""
    x, protected = last(5, pages()), last(5, pages() + mmap.PAGESIZE)
    x[:] = numbers(5)
    c, out = (torch.arange(16) < 5).int(), torch.full((16,), -5.0)
    with optimised("-O0"):
        in_child(lambda: run(kernels.on_condition, x, c, protected, out, 0))
    run(kernels.on_condition, x, c, protected, out, 0)
    assert torch.equal(out, torch.cat([x, torch.full((11,), -5.0)]))
    run(kernels.on_condition, x, c, numbers(1) + 7, out, 1)
    assert out[0] == 8


def test_assertions():
    x, out = numbers(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    assert run(kernels.asserts, x, out, checked=True) is None
    assert torch.equal(out, x)
    x[5] = 0
    fault = run(kernels.asserts, x, torch.zeros(16, dtype=torch.int32), checked=True)
    assert (fault.kind, fault.line) == ("assert", line_of("tl.device_assert(x > 0"))
    _, generated = build(kernels.asserts, x, out, checked=True, N=16)
    assert [site.message for site in generated.sites if site.what == "assert"] == ["must be positive"]
    assert run(kernels.asserts, x, out) is None, "unchecked kernels do not look"
