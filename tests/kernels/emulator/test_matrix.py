"""Matrix instructions against plain matrix products, with fragments laid out element by element as the PTX ISA says."""

import itertools

import numpy as np
import pytest
import torch

from ptx_emulator import EmulationError, MemoryFault, NotCoveredError, RaceError, matrix
from tests.kernels.emulator.programs import checks_of, each_of, run

KINDS = {"f16": torch.float16, "bf16": torch.bfloat16}
FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def random_matrix(rows, columns, kind, seed=0):
    """(bits uint16 or uint8 [rows, columns], the same as fp32), small halves: products and sums are exact."""
    x = torch.randint(-8, 9, (rows, columns), generator=torch.Generator().manual_seed(seed)) / 2
    if kind in FLOAT8:
        x = x.to(FLOAT8[kind])
        return x.view(torch.uint8).numpy(), x.float().numpy()
    return x.to(KINDS[kind]).view(torch.int16).numpy().view(np.uint16), x.numpy()


def integers(*shape):
    return np.random.default_rng(1).integers(0, 2**32, shape, np.uint64).astype(np.uint32)


# -- ldmatrix, stmatrix -----------------------------------------------------------------------------------------------


def rows_of_matrices(count, warps=2):
    """(bytes of shared memory, uint16 [warps, count, 8, 8], the row address of each thread): rows in random order."""
    rng = np.random.default_rng(0)
    matrices = rng.integers(0, 2**16, (warps, count, 8, 8), np.uint32).astype(np.uint16)
    places = rng.permutation(warps * count * 8)
    shared = np.zeros((warps * count * 8, 8), np.uint16)
    shared[places] = matrices.reshape(-1, 8)
    addresses = np.zeros((warps, 32), np.uint32)
    addresses[:, : 8 * count] = 16 * places.reshape(warps, -1)
    return shared.view(np.uint8).reshape(1, -1), matrices, addresses.reshape(-1)


def check_matrices_in_shared_memory(module):
    """ldmatrix, element by element; and what stmatrix writes, ldmatrix of the same form reads."""
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        shared, matrices, addresses = rows_of_matrices(count)
        loaded, stored = ([f"%r{first + i}" for i in range(count)] for first in (11, 21))
        form = f"sync.aligned.m8n8.x{count}{trans}.shared.b16"
        load = f"ldmatrix.{form} {{{', '.join(loaded)}}}, [%r1];"
        got = run(load, {"%r1": addresses}, threads=64, shared=shared, shared_bytes=shared.size, module=module)
        for (i, register), thread in itertools.product(enumerate(loaded), range(64)):
            m, g, q = matrices[thread // 32, i], thread % 32 // 4, thread % 4
            low, high = (m[2 * q, g], m[2 * q + 1, g]) if trans else (m[g, 2 * q], m[g, 2 * q + 1])
            assert got[register][thread] == int(high) << 16 | int(low), (count, trans, i, thread)
        values = dict(zip(stored, integers(count, 64), strict=True))
        lines = f"stmatrix.{form} [%r1], {{{', '.join(stored)}}};\n{load}"
        got = run(lines, values | {"%r1": addresses}, threads=64, shared_bytes=shared.size, module=module)
        for register, name in zip(loaded, stored, strict=True):
            np.testing.assert_array_equal(got[register], values[name])


# -- mma.sync ---------------------------------------------------------------------------------------------------------


def fragments(bits):
    """[32 threads, elements] of A [16, k] or of B [8, k]: runs of 4 bytes in k, laid out as the PTX ISA says."""
    run_length = 4 // bits.itemsize
    out = np.zeros((32, bits.size // 32), bits.dtype)
    for thread, i in np.ndindex(*out.shape):
        (g, q), (register, within) = divmod(thread, 4), divmod(i, run_length)
        row, block = (g, register) if len(bits) == 8 else (g + 8 * (register % 2), register // 2)
        out[thread, i] = bits[row, run_length * (q + 4 * block) + within]
    return out


def of_warps(bits, num_warps):
    """A uint32 array per register, of warps that have a part of the rows each."""
    pairs = np.concatenate([fragments(part) for part in np.split(bits, num_warps)])
    return list(np.ascontiguousarray(pairs).view(np.uint32).T)


def group(names):
    return "{" + ", ".join(names) + "}"


def sums(n):
    return [f"%r{20 + i}" for i in range(n // 2)]


def result(registers, n, threads=128):
    """fp32 [16 per warp, n], element by element."""
    out = np.zeros((threads // 2, n), np.float32)
    for thread in range(threads):
        w, g, q = thread // 32, thread % 32 // 4, thread % 4
        for i, name in enumerate(sums(n)):
            out[16 * w + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * q + i % 2] = registers[name].view(np.float32)[thread]
    return out


def check_mma(module):
    """Two warps with a product each."""
    cases = [*((kind, kind, k) for kind in KINDS for k in (16, 8)), *((a, b, 32) for a in FLOAT8 for b in FLOAT8)]
    for kind_a, kind_b, k in cases:
        (bits_a, a), (bits_b, b) = random_matrix(32, k, kind_a), random_matrix(16, k, kind_b, 9)
        in_a, in_b = (
            {f"%r{first + i}": x for i, x in enumerate(of_warps(bits, 2))}
            for first, bits in ((11, bits_a), (51, bits_b))
        )
        c = dict(zip(sums(8), np.arange(256, dtype=np.float32).reshape(4, 64), strict=True))
        operands = ", ".join(map(group, (c, in_a, in_b, c)))
        line = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind_a}.{kind_b}.f32 {operands};"
        got = run(line, c | in_a | in_b, threads=64, module=module)
        want = np.concatenate([a[:16] @ b[:8].T, a[16:] @ b[8:].T]) + result(c, 8, 64)
        np.testing.assert_array_equal(result(got, 8, 64), want, f"{kind_a} {kind_b} {k}")


# -- wgmma ------------------------------------------------------------------------------------------------------------

MODE = {128: 1, 64: 2, 32: 3}  # of the descriptor, by bytes of a swizzled row
ROW_GROUP = {128: 1, 64: 2, 32: 4}  # rows of a swizzled pattern's chunks that stay in place together


def place(shared, base, tile, span, stride, leading=0, transposed=False):
    """Write a tile [rows, k] at `base` the way wgmma reads it with these strides and this swizzle."""
    elements = span // tile.itemsize
    for (row, k), bits in np.ndenumerate(tile):
        if transposed:  # runs along the rows; the k-th of 8 lines
            line, byte = k % 8, row % elements * tile.itemsize
            start = row // elements * leading + k // 8 * stride
        else:
            line, byte = row % 8, k * tile.itemsize
            start = row // 8 * stride
        chunk = byte // 16 ^ line // ROW_GROUP[span] % (span // 16)
        address = base + start + line * span + 16 * chunk + byte % 16
        shared[address : address + tile.itemsize] = np.frombuffer(bits.tobytes(), np.uint8)


def descriptor(base, span, leading, stride):
    return base >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | MODE[span] << 62


FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT, WAIT_FOR_ALL_BUT_ONE = "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"


def product_of(a, b, n=16, kind="f16", kind_b=None, keep="0", transposed=(0, 0)):
    """The instruction; `a` may be registers, which know no transposition, and bytes know none."""
    k, flags = (32, ()) if kind in FLOAT8 else (16, transposed[a.startswith("{") :])
    shape, flags = f"m64n{n}k{k}.f32.{kind}.{kind_b or kind}", ", ".join(map(str, (keep, 1, 1, *flags)))
    return f"wgmma.mma_async.sync.aligned.{shape} {group(sums(n))}, {a}, {b}, {flags};"


def tiles_in_shared(kind, n, span, transposed, k0=0):
    """(shared memory, descriptors of A and B, A, B as fp32): A [64, 16] at 0, B [n, 16] at 16384; k from k0 of its row."""
    (bits_a, a), (bits_b, b) = random_matrix(64, 16, kind, 1), random_matrix(n, 16, kind, 2)
    shared = np.zeros(32768, np.uint8)
    descriptors = []
    for base, bits, is_transposed in ((0, bits_a, transposed[0]), (16384, bits_b, transposed[1])):
        # Groups of 8 lines lie `stride` apart, the next span of rows (when transposed) `leading`: any multiples do.
        stride, leading = 8 * span, 4 * 8 * span
        if not is_transposed:
            bits = np.pad(bits, ((0, 0), (k0, 0)))
        place(shared, base, bits, span, stride, leading, is_transposed)
        descriptors.append(descriptor(base + (0 if is_transposed else 2 * k0), span, leading, stride))
    return shared, descriptors, a, b


def check_products(module):
    """Each swizzle, both orders of A and of B, and the second 16 of a longer row of k."""
    cases = [(kind, span, (ta, tb), 0) for kind in KINDS for span in (128, 64, 32) for ta in (0, 1) for tb in (0, 1)]
    cases += [("f16", 128, (0, 0), 16), ("f16", 128, (0, 0), 48), ("bf16", 64, (0, 0), 16)]
    for kind, span, transposed, k0 in cases:
        n = 32
        shared, (at_a, at_b), a, b = tiles_in_shared(kind, n, span, transposed, k0)
        lines = [FENCE, product_of("%rd1", "%rd2", n, kind, transposed=transposed), COMMIT, WAIT]
        registers = {"%rd1": np.uint64(at_a), "%rd2": np.uint64(at_b)}
        got = run("\n".join(lines), registers, threads=128, shared=shared, shared_bytes=shared.size, module=module)
        np.testing.assert_array_equal(result(got, n), a @ b.T, f"{kind} {span} {transposed} {k0}")


def check_a_in_registers(module):
    """Laid out as for mma, beside A in shared memory; of bytes k is 32, and neither side can be transposed."""
    names, kinds = ["%r91", "%r92", "%r93", "%r94"], [("bf16", "bf16"), *itertools.product(FLOAT8, FLOAT8)]
    for span, (kind_a, kind_b) in zip((128, 128, 64, 32, 128), kinds, strict=True):
        k = 32 if kind_a in FLOAT8 else 16
        (bits_a, a), (bits_b, b) = random_matrix(64, k, kind_a, 1), random_matrix(16, k, kind_b, 2)
        shared, registers = np.zeros(32768, np.uint8), dict(zip(names, of_warps(bits_a, 4), strict=True))
        for name, base, bits in (("%rd1", 0, bits_a), ("%rd2", 16384, bits_b)):
            place(shared, base, bits, span, 8 * span)
            registers[name] = np.uint64(descriptor(base, span, 16, 8 * span))
        for side in ("%rd1", group(names)):
            lines = [FENCE, product_of(side, "%rd2", 16, kind_a, kind_b), COMMIT, WAIT]
            got = run("\n".join(lines), registers, threads=128, shared=shared, shared_bytes=shared.size, module=module)
            np.testing.assert_array_equal(result(got, 16), a @ b.T, f"{kind_a} {kind_b} {span} {side}")


def check_sums_go_on(module):
    """Several products add to one sum, the first to what the registers held or, if told so, to nothing."""
    shared, (at_a, at_b), a, b = tiles_in_shared("f16", 16, 128, (0, 0))
    first = np.arange(128, dtype=np.float32)
    registers = {"%rd1": np.uint64(at_a), "%rd2": np.uint64(at_b), "%p1": np.ones(128, bool)}
    registers |= dict.fromkeys(sums(16), first)
    keep, drop = (product_of("%rd1", "%rd2", keep=p) for p in ("%p1", "0"))
    options = {"threads": 128, "shared": shared, "shared_bytes": shared.size, "module": module}
    before = result(registers, 16)
    for products, want in (
        ([keep], before + a @ b.T), ([drop], a @ b.T), ([keep, keep], before + 2 * (a @ b.T)), ([drop, keep], 2 * (a @ b.T)),
    ):  # fmt: skip
        got = run("\n".join([FENCE, *products, COMMIT, WAIT]), registers, **options)
        np.testing.assert_array_equal(result(got, 16), want)


def multiplying(lines, module=matrix, threads=128, blocks=1, **registers):
    """(registers, A B^T) after some lines with %rd1, %rd2 at the tiles, %r1 at a thread's own 4 bytes of A."""
    shared, (at_a, at_b), a, b = tiles_in_shared("f16", 16, 128, (0, 0))
    given = {"%rd1": np.uint64(at_a), "%rd2": np.uint64(at_b), "%r2": np.arange(threads, dtype=np.uint32)}
    given |= {"%r1": 4 * np.arange(threads, dtype=np.uint32)} | {f"%{name}": v for name, v in registers.items()}
    given = {name: np.resize(v, threads * blocks) for name, v in given.items()}
    return run(
        "\n".join(lines), given, threads=threads, blocks=blocks, shared=shared, shared_bytes=shared.size, module=module
    ), a @ b.T


PRODUCT = product_of("%rd1", "%rd2")
WRITE, BAR, PROXY = "st.shared.b32 [%r1], %r2;", "bar.sync 0;", "fence.proxy.async.shared::cta;"


def check_order_of_products(module):
    """What shared memory has to go through before, during and after a product."""
    for lines in ([WRITE, PROXY, BAR, PRODUCT, COMMIT, WAIT, BAR, WRITE], [PRODUCT, COMMIT, WAIT, BAR, WRITE]):
        multiplying([FENCE, *lines], module)
    for lines, message in (
        ([WRITE, BAR, PRODUCT], "no fence.proxy.async in between"),
        ([WRITE, f"@%p1 {PROXY}", BAR, PRODUCT], "no fence.proxy.async in between"),
        ([WRITE, PROXY, PRODUCT], "with no barrier in between"),
        ([PRODUCT, COMMIT, f"@%p1 {WAIT}", BAR, WRITE], "has not been waited for"),
        ([PRODUCT, COMMIT, BAR, WRITE], "hardware that reads it .* has not been waited for"),
        ([PRODUCT, COMMIT, WAIT_FOR_ALL_BUT_ONE, BAR, WRITE], "has not been waited for"),
        ([PRODUCT, WAIT, BAR, WRITE], "has not been waited for"),  # of no group
        ([PRODUCT, COMMIT, WAIT, WRITE], "that another read, with no barrier"),
        (["cp.async.ca.shared.global [%r1], [%rd3], 0x4, 0;", PRODUCT], "before the wait for the copy"),
    ):
        with pytest.raises(RaceError, match=message):
            multiplying([FENCE, *lines], module, p1=np.arange(128) < 32)


def check_sums_before_the_wait(module):
    """They are garbage, and a copy made too early stays so."""
    copies = [f"mov.b32 %r{60 + i}, {name};" for i, name in enumerate(sums(16))]
    for lines, is_right in (
        ([WAIT, *copies], True),
        ([*copies, WAIT], False),
        ([WAIT_FOR_ALL_BUT_ONE, *copies, WAIT], False),
        ([PRODUCT, COMMIT, WAIT_FOR_ALL_BUT_ONE, *copies, WAIT], False),
    ):
        got, want = multiplying([FENCE, PRODUCT, COMMIT, *lines], module)
        np.testing.assert_array_equal(result(got, 16), want)
        copied = result({name: got[f"%r{60 + i}"] for i, name in enumerate(sums(16))}, 16)
        assert np.isnan(copied).all() != is_right
        assert (copied == want).all() == is_right


def check_fences_of_registers(module):
    """Between a thread's use of a sum or of A and a product's there must be a wgmma.fence, and one before the first."""
    of_registers = product_of("{%r11, %r12, %r13, %r14}", "%rd2")
    write_sum, read_sum, write_a = "xor.b32 %r20, %r2, %r2;", "add.s32 %r90, %r20, 1;", "xor.b32 %r13, %r2, %r2;"
    copy_used, copy_fenced = "mov.b32 %r20, %r91;", "mov.b32 %r20, %r92;"  # a copy is as its source
    for lines in (
        [write_sum, FENCE, PRODUCT], [FENCE, PRODUCT, PRODUCT], [FENCE, "mov.b32 %r90, 0;", PRODUCT],
        ["add.s32 %r92, %r2, 1;", FENCE, copy_fenced, PRODUCT], [write_a, FENCE, of_registers, of_registers], [FENCE, PRODUCT, COMMIT, WAIT, read_sum, FENCE, PRODUCT],
    ):  # fmt: skip
        multiplying([*lines, COMMIT, WAIT], module)
    after_a_product = [FENCE, PRODUCT, COMMIT, WAIT]
    for lines in (
        [FENCE, "add.s32 %r91, %r2, 1;", copy_used, PRODUCT], [PRODUCT], [FENCE, write_sum, PRODUCT], [FENCE, write_a, of_registers], [*after_a_product, read_sum, PRODUCT]
    ):  # fmt: skip
        with pytest.raises(RaceError, match=r"with no wgmma\.fence in between"):
            multiplying(lines, module)


def check_warpgroups(module):
    got, want = multiplying([FENCE, PRODUCT, COMMIT, WAIT], module, threads=256, blocks=2)
    for first in range(0, 512, 128):
        part = {name: got[name][first : first + 128] for name in sums(16)}
        np.testing.assert_array_equal(result(part, 16), want)
    of_the_first, of_the_other = np.arange(256) < 128, np.arange(256) >= 128
    lines = [FENCE, "@%p2 add.s32 %r90, %r20, 1;", f"@%p1 {FENCE}", f"@%p1 {PRODUCT}", COMMIT, WAIT]
    multiplying(lines, module, threads=256, p1=of_the_first, p2=of_the_other)
    lines[3] = f"@%p2 {PRODUCT}"
    with pytest.raises(RaceError, match=r"with no wgmma\.fence in between"):
        multiplying(lines, module, threads=256, p1=of_the_first, p2=of_the_other)
    with pytest.raises(EmulationError, match="whole warpgroups"):
        multiplying([f"@%p1 {PRODUCT}"], module, p1=np.arange(128) < 64)
    with pytest.raises(EmulationError, match="disagree about an operand"):
        multiplying([PRODUCT], module, rd1=np.arange(128, dtype=np.uint64))
    with pytest.raises(MemoryFault, match="beyond shared memory"):
        multiplying([PRODUCT], module, rd1=np.uint64(descriptor(32768 - 256, 128, 0, 1024)))


CHECKS = checks_of(globals())
test_matrices = each_of(CHECKS, matrix)


@pytest.mark.parametrize(
    "line",
    [
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, {%r1,%r2}, {%r1,%r2,%r3,%r4};",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.e4m3.e4m3 {%r1,%r2,%r3,%r4}, %rd1, %rd2, 0, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16 {%r1,%r2,%r3,%r4}, %rd1, %rd2, 0, 1, 1, 0, 0;",
        PRODUCT.replace("0, 1, 1", "0, -1, 1"),
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8 {%r1}, [%r1];",
    ],
)
def test_forms_that_are_not_covered(line):
    with pytest.raises(NotCoveredError):
        run(line, threads=128, shared_bytes=1024)


@pytest.mark.parametrize(
    ("bits", "message"), [(1 << 49, "base offset"), (3 << 62 ^ 3 << 62, "without swizzling")], ids=["offset", "plain"]
)
def test_descriptors_that_are_not_covered(bits, message):
    with pytest.raises(NotCoveredError, match=message):
        multiplying([PRODUCT], rd1=np.uint64(bits))
