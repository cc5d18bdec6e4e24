"""Small Triton kernels for the tests of the compiler, and the types each is compiled for.

`PROGRAMS` names them: `add[f32]` is the function `add` for fp32. They are compiled to TTIR all at once, by front_end.py.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

TRITON_NAMES = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16", "e4m3": "fp8e4nv"}


@dataclass(frozen=True)
class Program:
    function: str
    signature: dict[str, str]
    constants: dict[str, object]


PROGRAMS: dict[str, Program] = {}


def program(name: str, function: str, types: str, **constants: object) -> None:
    """types: those of the arguments that are not constants, '*f32 *f32 i32'."""
    jit = globals()[function]
    names = [n for n in jit.arg_names if n not in constants]
    kinds = [("*" if t[0] == "*" else "") + TRITON_NAMES.get(t.lstrip("*"), t.lstrip("*")) for t in types.split()]
    PROGRAMS[name] = Program(function, dict(zip(names, kinds, strict=True)), constants)


# ---- elementwise: each result is a row of `out`


@triton.jit
def integers(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, a + b)
    tl.store(out_ptr + N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, a & b)
    tl.store(out_ptr + 4 * N + i, a | b)
    tl.store(out_ptr + 5 * N + i, a ^ b)
    tl.store(out_ptr + 6 * N + i, tl.minimum(a, b))
    tl.store(out_ptr + 7 * N + i, tl.maximum(a, b))
    tl.store(out_ptr + 8 * N + i, -a)
    tl.store(out_ptr + 9 * N + i, ~a)


@triton.jit
def division(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, a // b)
    tl.store(out_ptr + N + i, a % b)
    tl.store(out_ptr + 2 * N + i, a // 7)
    tl.store(out_ptr + 3 * N + i, a % 8)


@triton.jit
def shifts(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, a << b)
    tl.store(out_ptr + N + i, a >> b)
    tl.store(out_ptr + 2 * N + i, a << 3)
    tl.store(out_ptr + 3 * N + i, a >> 3)


@triton.jit
def comparisons(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, a < b)
    tl.store(out_ptr + N + i, a <= b)
    tl.store(out_ptr + 2 * N + i, a > b)
    tl.store(out_ptr + 3 * N + i, a >= b)
    tl.store(out_ptr + 4 * N + i, a == b)
    tl.store(out_ptr + 5 * N + i, a != b)


@triton.jit
def floats(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, a + b)
    tl.store(out_ptr + N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, (a / b).to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + 4 * N + i, tl.minimum(a, b))
    tl.store(out_ptr + 5 * N + i, tl.maximum(a, b))
    tl.store(out_ptr + 6 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 7 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 8 * N + i, -a)
    tl.store(out_ptr + 9 * N + i, tl.abs(a))
    tl.store(out_ptr + 10 * N + i, tl.where(a < b, a, b))
    tl.store(out_ptr + 11 * N + i, tl.clamp(a, -1.0, 1.0))


@triton.jit
def functions(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.exp(x))
    tl.store(out_ptr + N + i, tl.exp2(x))
    tl.store(out_ptr + 2 * N + i, tl.log(x))
    tl.store(out_ptr + 3 * N + i, tl.log2(x))
    tl.store(out_ptr + 4 * N + i, tl.sqrt(x))
    tl.store(out_ptr + 5 * N + i, tl.rsqrt(x))
    tl.store(out_ptr + 6 * N + i, tl.sin(x))
    tl.store(out_ptr + 7 * N + i, tl.cos(x))
    tl.store(out_ptr + 8 * N + i, tl.floor(x))
    tl.store(out_ptr + 9 * N + i, tl.ceil(x))
    tl.store(out_ptr + 10 * N + i, tl.sigmoid(x))
    tl.store(out_ptr + 11 * N + i, tl.erf(x))
    tl.store(out_ptr + 12 * N + i, tl.fma(x, x, x))
    if x_ptr.dtype.element_ty == tl.float32:
        tl.store(out_ptr + 13 * N + i, tl.div_rn(x, x + 1.0))
        tl.store(out_ptr + 14 * N + i, tl.sqrt_rn(x))


@triton.jit
def convert(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))


@triton.jit
def reinterpret(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty, bitcast=True))


@triton.jit
def constants(out_ptr, long_ptr, half_ptr):
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


@triton.jit
def scalars(out_ptr, i8, i16, i32, i64, f, flag):
    tl.store(out_ptr, i8)
    tl.store(out_ptr + 1, i16)
    tl.store(out_ptr + 2, i32)
    tl.store(out_ptr + 3, i64)
    tl.store(out_ptr + 4, (f * 2).to(tl.int64))
    tl.store(out_ptr + 5, tl.where(flag, 1, 2))
    tl.store(out_ptr + 6, tl.cdiv(i32, 7))


@triton.jit
def grid_ids(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    place = (z * ny + y) * nx + x
    tl.store(out_ptr + place, x + 10 * y + 100 * z + 1000 * nz)


@triton.jit
def truth(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    """Truth values as numbers: loaded, compared, added."""
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, (a & b).to(tl.int32))
    tl.store(out_ptr + N + i, (a | b).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, (a ^ b).to(tl.int32))
    tl.store(out_ptr + 3 * N + i, (not a).to(tl.int32) if N == 1 else (~a).to(tl.int32))
    tl.store(out_ptr + 4 * N + i, tl.where(a, 5, 6))
    tl.store(out_ptr + 5 * N + i, a.to(tl.float32).to(tl.int32))


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


@triton.jit
def bounds(x_ptr, out_ptr, n, N: tl.constexpr):
    """Each way to write the comparison of an index with a bound, one row of `out` each."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x, mask=i < n)
    tl.store(out_ptr + N + i, x, mask=i <= n)
    tl.store(out_ptr + 2 * N + i, x, mask=i > n)
    tl.store(out_ptr + 3 * N + i, x, mask=i >= n)
    tl.store(out_ptr + 4 * N + i, x, mask=n > i)
    tl.store(out_ptr + 5 * N + i, x, mask=n <= i)
    tl.store(out_ptr + 6 * N + i, x, mask=i + 3 < n)
    tl.store(out_ptr + 7 * N + i, x, mask=2 * i < n)
    tl.store(out_ptr + 8 * N + i, x, mask=(i != n) & (i < N - 1))
    tl.store(out_ptr + 9 * N + i, x, mask=(i < N) & (i >= 0) & (n > 4))


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
def through_pointers(table_ptr, out_ptr, N: tl.constexpr):
    """A table of addresses, as integers."""
    i = tl.arange(0, N)
    for row in range(2):
        source = tl.load(table_ptr + row).to(tl.pointer_type(tl.float32))
        tl.store(out_ptr + row * N + i, tl.load(source + i))


@triton.jit
def shapes(x_ptr, out_ptr, half_ptr, M: tl.constexpr, N: tl.constexpr):
    """Reshape, transposition, join, split, each on its way from memory to memory."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    place = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + place)
    flat = tl.arange(0, M * N)
    tl.store(out_ptr + flat, tl.reshape(tl.trans(x), [M * N]))
    even, odd = tl.split(tl.reshape(x, [M, N // 2, 2]))
    half = m[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :]
    tl.store(half_ptr + half, even - odd)
    both = tl.reshape(tl.join(odd, even), [M, N])
    tl.store(out_ptr + M * N + place, both)
    cube = tl.permute(tl.reshape(x, [2, M // 2, N]), [2, 0, 1])
    tl.store(out_ptr + 2 * M * N + flat, tl.reshape(cube, [M * N]))
    tl.store(out_ptr + 3 * M * N + flat, tl.reshape(tl.reshape(x, [N, M]) * 2, [M * N]))


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
def of_rows(q_ptr, k_ptr, v_ptr, rows_ptr, out_ptr, N: tl.constexpr):
    """(q k^T) v for rows of k and v that are found in a table; both are [_, N]."""
    offs = tl.arange(0, N)
    at = (tl.load(rows_ptr + offs) * N)[:, None]
    place = offs[:, None] * N + offs[None, :]
    scores = tl.dot(tl.load(q_ptr + place), tl.trans(tl.load(k_ptr + at + offs[None, :])), input_precision="ieee")
    tl.store(out_ptr + place, tl.dot(scores, tl.load(v_ptr + at + offs[None, :]), input_precision="ieee"))


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
def reduce_all(x_ptr, rows_ptr, columns_ptr, all_ptr, M: tl.constexpr, N: tl.constexpr):
    """Along the last dimension, the first, and both; sum, max and min of each."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(rows_ptr + m, tl.sum(x, axis=1))
    tl.store(rows_ptr + M + m, tl.max(x, axis=1))
    tl.store(rows_ptr + 2 * M + m, tl.min(x, axis=1))
    tl.store(columns_ptr + n, tl.sum(x, axis=0))
    tl.store(columns_ptr + N + n, tl.max(x, axis=0))
    tl.store(columns_ptr + 2 * N + n, tl.min(x, axis=0))
    tl.store(all_ptr, tl.sum(x))
    tl.store(all_ptr + 1, tl.max(x))
    tl.store(all_ptr + 2, tl.min(x))


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
def nan_rules(x_ptr, rows_ptr, columns_ptr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(rows_ptr + m, tl.reduce(x, 1, larger_with_nan))
    tl.store(rows_ptr + M + m, tl.reduce(x, 1, smaller_with_nan))
    tl.store(rows_ptr + 2 * M + m, tl.reduce(x, 1, times))
    tl.store(columns_ptr + n, tl.reduce(x, 0, larger_with_nan))
    tl.store(columns_ptr + N + n, tl.reduce(x, 0, smaller_with_nan))
    tl.store(columns_ptr + 2 * N + n, tl.reduce(x, 0, times))


@triton.jit
def other_reductions(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(out_ptr + m, tl.argmax(x, axis=1))
    tl.store(out_ptr + M + m, tl.argmin(x, axis=1))
    tl.store(out_ptr + 2 * M + m, tl.xor_sum(x, axis=1))
    tl.store(out_ptr + 3 * M + m, tl.max(x.to(tl.int64), axis=1).to(tl.int32))
    tl.store(out_ptr + 4 * M + m, tl.sum((x > 0).to(tl.int32), axis=1))
    best, where = tl.max(x, axis=0, return_indices=True)
    tl.store(out_ptr + 5 * M + n, best)
    tl.store(out_ptr + 5 * M + N + n, where)
    tl.store(out_ptr + 5 * M + 2 * N + n, tl.xor_sum(x, axis=0))


@triton.jit
def scans(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    place = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, tl.cumsum(x, axis=1))
    tl.store(out_ptr + M * N + place, tl.cumsum(x, axis=0))
    tl.store(out_ptr + 2 * M * N + place, tl.cumsum(x, axis=1, reverse=True))
    tl.store(out_ptr + 3 * M * N + place, tl.cumprod(x, axis=1))


@triton.jit
def softmax(x_ptr, out_ptr, columns, N: tl.constexpr):
    """Triton's tutorial 02."""
    row, i = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * columns + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + i, e / tl.sum(e, axis=0), mask=i < columns)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, n, eps, N: tl.constexpr):
    """Triton's tutorial 05, forward: three passes over a row in blocks."""
    row, i = tl.program_id(0), tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for start in range(0, n, N):
        total += tl.load(x_ptr + row * n + start + i, mask=start + i < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([N], tl.float32)
    for start in range(0, n, N):
        x = tl.load(x_ptr + row * n + start + i, mask=start + i < n, other=0.0).to(tl.float32)
        x = tl.where(start + i < n, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    for start in range(0, n, N):
        mask = start + i < n
        w, b = tl.load(w_ptr + start + i, mask=mask), tl.load(b_ptr + start + i, mask=mask)
        x = tl.load(x_ptr + row * n + start + i, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * n + start + i, (x - mean) * rstd * w + b, mask=mask)


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


@triton.jit
def half_sums(x_ptr, rows_ptr, columns_ptr, N: tl.constexpr):
    """Sums in fp16, to which something is added in fp16."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + i[None, :])
    tl.store(rows_ptr + i, tl.sum(x, axis=1) + 1)
    tl.store(columns_ptr + i, tl.sum(x, axis=0) + 1)


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
def nested(x_ptr, out_ptr, rows, columns, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for r in range(rows):
        best = tl.full([N], -1000.0, tl.float32)
        for c in range(0, columns, N):
            x = tl.load(x_ptr + r * columns + c + i, mask=c + i < columns, other=-1000.0)
            best = tl.maximum(best, x)
        if r % 2 == 0:
            total += best
        else:
            total -= best
    tl.store(out_ptr + i, total)


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
def rolling(x_ptr, out_ptr, n, N: tl.constexpr):
    """A carried tensor whose next value reads its other elements."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = x
    for _ in range(n):
        x, y = tl.reshape(tl.trans(tl.reshape(x, [2, N // 2])), [N]), x + y
    tl.store(out_ptr + i, x)
    tl.store(out_ptr + N + i, y)


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
def ranges(out_ptr):
    i, j = tl.arange(0, 16), tl.arange(16, 32)
    tl.store(out_ptr + i, j * j)


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
def narrow_constants(out_ptr):
    i = tl.arange(0, 2)
    tl.store(out_ptr + i, tl.full([2], float("-inf"), tl.bfloat16))
    tl.store(out_ptr + 2 + i, tl.full([2], 1.5, tl.bfloat16))


for kind in ("i8", "i16", "i32", "i64"):
    program(f"integers[{kind}]", "integers", " ".join([f"*{kind}"] * 3), N=32)
    program(f"shifts[{kind}]", "shifts", " ".join([f"*{kind}"] * 3), N=32)
for kind in ("i8", "i16", "i32", "i64", "u8", "u32", "u64"):
    program(f"division[{kind}]", "division", " ".join([f"*{kind}"] * 3), N=32)
for kind in ("i32", "u32", "f32", "i8", "bf16"):
    program(f"comparisons[{kind}]", "comparisons", f"*{kind} *{kind} *i8", N=32)
program("shifts[u32]", "shifts", "*u32 *u32 *u32", N=32)
for kind in ("f32", "f16", "bf16", "f64"):
    program(f"floats[{kind}]", "floats", " ".join([f"*{kind}"] * 3), N=64)
program("functions[f32]", "functions", "*f32 *f32", N=128)
program("functions[f64]", "functions", "*f64 *f64", N=128)
CONVERSIONS = [
    ("f32", "f16"), ("f32", "bf16"), ("f32", "e4m3"), ("f32", "i32"), ("f32", "i8"), ("f32", "i64"),
    ("f32", "u32"), ("f16", "f32"), ("bf16", "f32"), ("e4m3", "f32"), ("f16", "bf16"), ("e4m3", "f16"),
    ("i32", "f32"), ("i64", "f32"), ("u32", "f32"), ("i8", "i32"), ("u8", "i32"), ("i32", "i8"), ("i64", "i32"),
    ("i32", "bf16"), ("f64", "f32"), ("f64", "i64"), ("f32", "f64"), ("f16", "e4m3"), ("f64", "bf16"),
]  # fmt: skip
for source, target in CONVERSIONS:
    program(f"convert[{source} {target}]", "convert", f"*{source} *{target}", N=256)
BITCASTS = [
    ("f32", "i32"),
    ("i32", "f32"),
    ("f16", "i16"),
    ("i16", "bf16"),
    ("f64", "i64"),
    ("i64", "f64"),
    ("i8", "e4m3"),
]
for source, target in BITCASTS:
    program(f"reinterpret[{source} {target}]", "reinterpret", f"*{source} *{target}", N=256)
program("constants", "constants", "*f32 *i64 *f16")
program("scalars", "scalars", "*i64 i8 i16 i32 i64 f32 i1")
program("grid_ids", "grid_ids", "*i32")
program("truth", "truth", "*i1 *i1 *i32", N=32)
program("inline_ptx", "inline_ptx", "*i32")
program("histogram", "histogram", "*i32 *i32")
program("prints", "prints", "*i32")

for kind in ("f32", "f16", "bf16", "i32", "i8", "i1"):
    program(f"copy_masked[{kind}]", "copy_masked", f"*{kind} *{kind} i32 i32", N=64)
for kind in ("f32", "bf16"):
    program(f"tile[{kind}]", "tile", f"*{kind} *{kind} i32 i32 i32 i32 i32 i32", M=8, N=32)
program("rows[f32]", "tile", "*f32 *f32 i32 i32 i32 i32", x_column=1, out_column=1, M=8, N=32)
program("turned[f32]", "tile", "*f32 *f32 i32 i32 i32 i32", x_column=1, out_row=1, M=8, N=32)
program("bounds", "bounds", "*f32 *f32 i32", N=16)
program("gathered", "gathered", "*f32 *i32 *f32 i32", N=16)
program("shift_in_place", "shift_in_place", "*f32 i32", N=64)
program("read_twice", "read_twice", "*f32 *f32", N=16)
program("through_pointers", "through_pointers", "*i64 *f32", N=16)
program("shapes", "shapes", "*f32 *f32 *f32", M=4, N=8)
program("atomics", "atomics", "*i32 *i32 *i32 *i32 i32", N=32)
program("add_floats", "add_floats", "*f32 *f32", N=16)
program("ticket", "ticket", "*i32 *i32 i32")
SHAPES = [(16, 32, 64), (4, 64, 32), (2, 64, 32), (2, 16, 16), (4, 8, 16), (16, 8, 16), (64, 16, 32)]  # (M, N, K)
for m, n, k in SHAPES:
    for turned in (False, True):
        for kind, suffix in (("f32", ""), ("bf16", " bf16")):
            program(
                f"product[{m} {n} {k} {turned}{suffix}]",
                "product",
                f"*{kind} *{kind} *f32",
                M=m,
                N=n,
                K=k,
                TRANSPOSED=turned,
                ACC="tl.float32",
            )
for kind in ("bf16", "f16", "e4m3"):
    program(f"product[{kind}]", "product", f"*{kind} *{kind} *f32", M=16, N=16, K=32, TRANSPOSED=True, ACC="tl.float32")
for turned in (False, True):
    program(f"product[i8 {turned}]", "product", "*i8 *i8 *i32", M=16, N=16, K=32, TRANSPOSED=turned, ACC="tl.int32")
program("matmul", "matmul", "*f32 *f32 *f32 i32 i32 i32", BM=16, BN=32, BK=16)
for kind in ("f32", "bf16"):
    for m in (1, 2, 4, 8, 16):
        for number in (1, 2, 4):
            program(f"pairs[{kind} {m} {number}]", "pairs", f"*{kind} *{kind} *f32 i32 i32", M=m, N=64, K=16, IN=number)
program("of_rows", "of_rows", "*f32 *f32 *f32 *i32 *f32", N=16)
program("exchanged", "exchanged", "*f32 *f32 *f32 i32", N=16)
for kind in ("f32", "i32", "f64"):
    program(f"reduce_all[{kind}]", "reduce_all", f"*{kind} *{kind} *{kind} *{kind}", M=8, N=64)
program("reduce_all[f16]", "reduce_all", "*f16 *f16 *f16 *f16", M=8, N=64)
program("reduce_all[one row]", "reduce_all", "*f32 *f32 *f32 *f32", M=1, N=64)
program("nan_rules", "nan_rules", "*f32 *f32 *f32", M=4, N=16)
program("other_reductions", "other_reductions", "*i32 *i32", M=8, N=16)
for kind in ("f32", "i32"):
    program(f"scans[{kind}]", "scans", f"*{kind} *{kind}", M=4, N=16)
program("softmax", "softmax", "*f32 *f32 i32", N=64)
program("layer_norm", "layer_norm", "*f16 *f32 *f32 *f16 *f32 i32 f32", N=32)
program("flash", "flash", "*bf16 *bf16 *bf16 *bf16 i32 f32", M=16, N=32, D=16)
program("collatz", "collatz", "*i32 *i32")
program("fibonacci", "fibonacci", "*i32 i32", N=16)
program("nested", "nested", "*f32 *f32 i32 i32", N=8)
program("early", "early", "*i32 *i32 i32")
program("choose", "choose", "*i32 *i32 i32", N=16)
program("counts", "counts", "*i32 i32 i32 i32")
program("rolling", "rolling", "*f32 *f32 i32", N=16)
program("turning", "turning", "*f32 *f32 i32", N=16)
program("endless", "endless", "*i32")
program("asserts", "asserts", "*i32 *i32", N=16)
program("read_more", "read_more", "*f32 *f32 i32", N=16)
program("backwards", "backwards", "*f32 *f32 i32", N=16)
program("gathered_rows", "gathered_rows", "*f32 *i32 *f32", M=4, N=16)
program("known_bounds", "known_bounds", "*f32 *f32", N=16)
program("half_sums", "half_sums", "*f16 *f16 *f16", N=16)
program("change_places", "change_places", "*i32 i32")
program("drift", "drift", "*i32 *i32 i32", N=16)
program("doubled", "doubled", "*f32 *f32 i32", N=16)
program("ranges", "ranges", "*i32")
program("overwritten", "overwritten", "*f32 *f32", N=16)
program("unread", "unread", "*f32 *f32 i32", N=16)
program("narrow_constants", "narrow_constants", "*bf16")
program("filtered", "filtered", "*f32 *i32 *f32", N=16)
program("on_condition", "on_condition", "*f32 *i32 *f32 *f32 i32", N=16)
program("huge", "scans", "*f32 *f32", M=512, N=2048)
