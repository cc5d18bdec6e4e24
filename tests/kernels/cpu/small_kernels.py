"""Small Triton kernels for the tests of the compiler."""

import functools
import itertools
import linecache
import math
from zlib import crc32

import triton
import triton.language as tl

# ---- elementwise


def written(signature: str, *parts: list[str]):
    """The kernel of a text; Triton looks for its source in the cache of lines."""
    text = "\n    ".join([f"@triton.jit\ndef {signature}:", *itertools.chain(*parts)]) + "\n"
    file, names = f"<kernel {crc32(text.encode())}>", dict(globals())
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    return names[signature.partition("(")[0]]


@functools.cache
def table(*expressions: str, inputs: str = "ab"):
    """A kernel that stores each expression of its inputs' elements as a row of N elements of `out`."""
    return written(
        f"table({', '.join(f'{x}_ptr' for x in inputs)}, out_ptr, N: tl.constexpr)",
        ["i = tl.arange(0, N)", *(f"{x} = tl.load({x}_ptr + i)" for x in inputs)],
        [f"tl.store(out_ptr + {row} * N + i, {text})" for row, text in enumerate(expressions)],
    )


@functools.cache
def of_a_tile(rows: int, columns: int, *parts: tuple[str, tuple[int, ...]]):
    """A kernel that stores expressions of a tile x, each of a shape, one after the other."""
    lines, at = [], 0
    for text, shape in parts:
        place = {0: "", 1: " + i", 2: " + i[:, None] * {} + j[None, :]"}[len(shape)].format(*shape[1:])
        ranges = [f"{name} = tl.arange(0, {n})" for name, n in zip("ij", shape, strict=False)]
        lines += [*ranges, f"tl.store(out_ptr + {at}{place}, {text})"]
        at += math.prod(shape)
    load = f"x = tl.load(x_ptr + tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns})[None, :])"
    return written("of_a_tile(x_ptr, out_ptr)", [load], lines)


@triton.jit
def constants(out_ptr, long_ptr, half_ptr, narrow_ptr):
    tl.store(out_ptr, float("inf"))
    tl.store(out_ptr + 1, float("-inf"))
    tl.store(out_ptr + 2, float("nan"))
    tl.store(out_ptr + 3, 1e30)
    tl.store(out_ptr + 4, 1.17549435e-38)
    tl.store(out_ptr + tl.arange(5, 7), tl.full([2], -1.5, tl.float32))
    tl.store(long_ptr, -0x8000000000000000)
    tl.store(long_ptr + 1, 0x7FFFFFFFFFFFFFFF)
    tl.store(long_ptr + 2, -0x80000000)
    tl.store(half_ptr, 0.1)
    i, j = tl.arange(0, 16), tl.arange(16, 32)
    tl.store(long_ptr + 3 + i, j * j)
    k = tl.arange(0, 2)
    tl.store(narrow_ptr + k, tl.full([2], float("-inf"), tl.bfloat16))
    tl.store(narrow_ptr + 2 + k, tl.full([2], 1.5, tl.bfloat16))


@triton.jit
def inline_ptx(out_ptr):
    x = tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr, x)


@triton.jit
def histogram(x_ptr, out_ptr):
    i = tl.arange(0, 16)
    tl.store(out_ptr + i, tl.histogram(tl.load(x_ptr + i), 16))


@triton.jit
def prints(x_ptr):
    tl.device_print("x", tl.load(x_ptr))


# ---- memory


@triton.jit
def copy_masked(x_ptr, out_ptr, n, low, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=(i < n) & (i >= low), other=-7)
    tl.store(out_ptr + i, x, mask=i < n)


@triton.jit
def tile(x_ptr, out_ptr, rows, columns, x_row, x_column, out_row, out_column, M: tl.constexpr, N: tl.constexpr):
    """A tile with any strides, both ways, and rows and columns that end."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    x = tl.load(x_ptr + m[:, None] * x_row + n[None, :] * x_column, mask=mask, other=0)
    tl.store(out_ptr + m[:, None] * out_row + n[None, :] * out_column, x + x, mask=mask)


BOUNDS = (
    "i < n", "i <= n", "i > n", "i >= n", "n > i", "n <= i", "i + 3 < n", "2 * i < n", "(i != n) & (i < N - 1)",
    "(i < N) & (i >= 0) & (n > 4)",
)  # fmt: skip
# Each way to write the comparison of an index with a bound, one row of `out` each.
bounds = written(
    "bounds(x_ptr, out_ptr, n, N: tl.constexpr)",
    ["i = tl.arange(0, N)", "x = tl.load(x_ptr + i)"],
    [f"tl.store(out_ptr + {row} * N + i, x, mask={mask})" for row, mask in enumerate(BOUNDS)],
)


@triton.jit
def gathered(x_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    index = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, tl.load(x_ptr + index, mask=i < n, other=0.0))


@triton.jit
def shift_in_place(x_ptr, n, N: tl.constexpr):
    """Each element becomes its right neighbour: all are read before one is written."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(x_ptr + i, x, mask=i < n)


@triton.jit
def read_twice(x_ptr, out_ptr, N: tl.constexpr):
    """What was read before a store to the same place stays as it was."""
    i = tl.arange(0, N)
    before = tl.load(x_ptr + i)
    tl.store(x_ptr + i, before * 2)
    after = tl.load(x_ptr + i)
    tl.store(out_ptr + i, before + 10 * after)


@triton.jit
def atomics(x_ptr, count_ptr, extreme_ptr, old_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(count_ptr + x % 4, 1, mask=i < n)
    place = extreme_ptr + i * 0
    tl.atomic_max(place, x, mask=i < n)
    tl.atomic_min(place + 1, x, mask=i < n)
    old = tl.atomic_xchg(old_ptr + i, x, mask=i < n)
    tl.store(old_ptr + n + i, old, mask=i < n)


@triton.jit
def add_floats(x_ptr, sum_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.atomic_add(sum_ptr, tl.sum(x, axis=0).to(sum_ptr.dtype.element_ty))


@triton.jit
def ticket(turn_ptr, out_ptr, n):
    """Compare and swap: the first program to come takes the place."""
    pid = tl.program_id(0)
    old = tl.atomic_cas(turn_ptr, 0, pid + 1)
    tl.store(out_ptr + pid, old)


@triton.jit
def read_more(x_ptr, out_ptr, n, N: tl.constexpr):
    """More is read than is used."""
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i), mask=i < n)


@triton.jit
def backwards(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + (n - 1 - i), mask=i < n, other=0.0))


@triton.jit
def gathered_rows(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    index = tl.load(index_ptr + n)
    x = tl.load(x_ptr + m[:, None] * N + index[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], x)


@triton.jit
def known_bounds(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i), mask=(i < N - 1) & (i > 0))


@triton.jit
def overwritten(x_ptr, out_ptr, N: tl.constexpr):
    """What was read before a store is used after it."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i, i * 1.0)
    tl.store(out_ptr + i, x)


@triton.jit
def unread(x_ptr, out_ptr, n, N: tl.constexpr):
    """A masked load without `other`, used as a whole."""
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n))


@triton.jit
def filtered(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    """A mask that depends on data, of a load and of the store after it."""
    i = tl.arange(0, N)
    index = tl.load(index_ptr + i)
    tl.store(out_ptr + i, tl.load(x_ptr + index, mask=index >= 0), mask=index >= 0)


@triton.jit
def on_condition(x_ptr, c_ptr, one_ptr, out_ptr, flag, N: tl.constexpr):
    """The same places are read and written: where c says so, and, one place for all elements, if the flag does."""
    i = tl.arange(0, N)
    mask = tl.load(c_ptr + i) > 0
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask), mask=mask)
    tl.store(out_ptr + i * 0, tl.load(one_ptr + i * 0, mask=flag > 0), mask=flag > 0)


# ---- products


@triton.jit
def product(
    a_ptr,
    b_ptr,
    out_ptr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ACC: tl.constexpr,
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = (
        tl.trans(tl.load(b_ptr + n[:, None] * K + k[None, :]))
        if TRANSPOSED
        else tl.load(b_ptr + k[:, None] * N + n[None, :])
    )
    c = tl.dot(a, b, out_dtype=ACC, input_precision="ieee")
    tl.store(out_ptr + m[:, None] * N + n[None, :], (c + 1).to(out_ptr.dtype.element_ty))


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Triton's tutorial 03 in short: tiles of pointers that a loop moves, a mask on the last turn."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    n = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_ptrs = a_ptr + m[:, None] * K + k[None, :]
    b_ptrs = b_ptr + k[:, None] * N + n[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - step * BK, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - step * BK, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BK
        b_ptrs += BK * N
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def pairs(a_ptr, b_ptr, out_ptr, k, row_stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, IN: tl.constexpr):
    """b is [k / IN, row_stride, IN]: groups of IN neighbours in k side by side."""
    m, n, at_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    words, places = tl.arange(0, K // IN)[:, None, None], tl.arange(0, IN)[None, :, None]
    b_ptrs = b_ptr + (words * row_stride + n[None, None, :]) * IN + places
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, k, K):
        a = tl.load(a_ptr + m[:, None] * k + start + at_k[None, :])
        acc = tl.dot(a, tl.reshape(tl.load(b_ptrs), [K, N]), acc, input_precision="ieee")
        b_ptrs += K * row_stride
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def exchanged(a_ptr, b_ptr, out_ptr, n, N: tl.constexpr):
    """Accumulators that change places, and one that is read after its product; b is overwritten after it was read."""
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x, y, z = tl.full([N, N], 1, tl.float32), tl.zeros([N, N], tl.float32), tl.zeros([N, N], tl.float32)
    total = tl.zeros([N, N], tl.float32)
    a = tl.load(a_ptr + place)
    for _ in range(n):
        b = tl.load(b_ptr + place)
        tl.store(b_ptr + place, a)
        x, y = tl.dot(a, b, y, input_precision="ieee"), x
        new = tl.dot(a, b, z, input_precision="ieee")
        total = 2 * total + z
        z = new
    tl.store(out_ptr + place, x)
    tl.store(out_ptr + N * N + place, y)
    tl.store(out_ptr + 2 * N * N + place, z)
    tl.store(out_ptr + 3 * N * N + place, total)


# ---- reductions


@triton.jit
def larger_with_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller_with_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def flash(q_ptr, k_ptr, v_ptr, out_ptr, n, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Triton's tutorial 06, forward, causal: one head."""
    m, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :], mask=(m < n)[:, None], other=0.0)
    top, total = tl.full([M], -float("inf"), tl.float32), tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * M, n), N):
        j = start + tl.arange(0, N)
        k = tl.load(k_ptr + j[:, None] * D + d[None, :], mask=(j < n)[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.44269504)
        scores = tl.where((j[None, :] <= m[:, None]) & (j < n)[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, axis=1))
        p = tl.exp2(scores - new[:, None])
        alpha = tl.exp2(top - new)
        total = total * alpha + tl.sum(p, axis=1)
        v = tl.load(v_ptr + j[:, None] * D + d[None, :], mask=(j < n)[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        top = new
    out = acc / total[:, None]
    tl.store(out_ptr + m[:, None] * D + d[None, :], out.to(out_ptr.dtype.element_ty), mask=(m < n)[:, None])


# ---- control


@triton.jit
def change_places(out_ptr, n):
    a, b = 1, 2
    for _ in range(n):
        a, b = b, a
    tl.store(out_ptr, a)
    tl.store(out_ptr + 1, b)


@triton.jit
def drift(x_ptr, out_ptr, n, N: tl.constexpr):
    """A carried tensor to which a tensor is added."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    place = i * 1
    for _ in range(n):
        place += x
    tl.store(out_ptr + i, place)


@triton.jit
def collatz(x_ptr, out_ptr):
    x, steps = tl.load(x_ptr + tl.program_id(0)), 0
    while x != 1:
        x = tl.where(x % 2 == 0, x // 2, 3 * x + 1)
        steps += 1
    tl.store(out_ptr + tl.program_id(0), steps)


@triton.jit
def fibonacci(out_ptr, n, N: tl.constexpr):
    """Two tensors that change places at each turn, and a third that only moves."""
    i = tl.arange(0, N)
    a, b, places = i, i + 1, i
    for _ in range(n):
        a, b = b, a + b
        places += 2
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N + i, b)
    tl.store(out_ptr + 2 * N + i, places)


@triton.jit
def early(x_ptr, out_ptr, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    x = tl.load(x_ptr + pid)
    if x < 0:
        tl.store(out_ptr + pid, -1)
        return
    tl.store(out_ptr + pid, x * 2)


@triton.jit
def choose(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if n > 0:
        y, z = x + 1, n
    else:
        y, z = x * 3, n - 5
    tl.store(out_ptr + i, y + z)


@triton.jit
def counts(out_ptr, low, high, step):
    """The number of turns, and the last counter."""
    turns, last = 0, -1
    for i in range(low, high, step):
        turns += 1
        last = i
    tl.store(out_ptr, turns)
    tl.store(out_ptr + 1, last)


@triton.jit
def turning(x_ptr, out_ptr, n, N: tl.constexpr):
    """A carried tensor that is arranged anew at each turn."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    for _ in range(n):
        x = tl.reshape(tl.trans(tl.reshape(x, [2, N // 2])), [N])
    tl.store(out_ptr + i, x)


@triton.jit
def endless(x_ptr):
    x = tl.load(x_ptr)
    while x >= 0:
        x = tl.load(x_ptr)
    tl.store(x_ptr, x)


@triton.jit
def asserts(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_assert(x > 0, "must be positive")
    tl.store(out_ptr + i, x)


@triton.jit
def doubled(x_ptr, out_ptr, n, N: tl.constexpr):
    """Each step uses the one before twice: whoever writes it out has 2^26 terms."""
    i = tl.arange(0, N)
    place = i
    for _ in tl.static_range(13):
        place = place + place - i
        place = place - i + i
    tl.store(out_ptr + place, tl.load(x_ptr + i), mask=place < n)


@triton.jit
def of_rows(q_ptr, k_ptr, v_ptr, rows_ptr, out_ptr, N: tl.constexpr):
    """(q k^T) v for rows of k and v that are found in a table; both are [_, N]."""
    offs = tl.arange(0, N)
    at = (tl.load(rows_ptr + offs) * N)[:, None]
    place = offs[:, None] * N + offs[None, :]
    scores = tl.dot(tl.load(q_ptr + place), tl.trans(tl.load(k_ptr + at + offs[None, :])), input_precision="ieee")
    tl.store(out_ptr + place, tl.dot(scores, tl.load(v_ptr + at + offs[None, :]), input_precision="ieee"))
