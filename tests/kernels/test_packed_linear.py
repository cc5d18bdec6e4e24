"""packed_linear against the product in fp64: weights as floats, and as codes of 4 and 8 bits; with each access verified, too."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

import triton_on_cpu
from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.linear_cases import FP32_SUM_ERROR, GUARD, activations, assert_linear, between_poison
from tests.kernels.planting import noticing
from twophase_kernels import KernelsUnavailableError, packed_linear

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="not run here: a kernel for CPUs")

# (T, O, I): one element; one block exactly; rests of rows, outputs, columns, and of a pair of columns; full tiles of rows.
SHAPES = [(1, 1, 1), (1, 64, 32), (3, 65, 33), (2, 130, 100), (8, 63, 64), (11, 70, 17), (0, 5, 3)]
DTYPES_OF_CPU = [dtype for dtype in DTYPES if dtype != torch.float16]


def weight_of(num_outputs, num_inputs, dtype):
    return torch.randn(num_outputs, num_inputs, generator=generator(3)).to(dtype)


def check_packed_linear(module, shape, dtype=torch.float32, has_bias=True):
    num_tokens, num_outputs, num_inputs = shape
    x = activations(num_tokens, num_inputs, dtype)
    weight = weight_of(num_outputs, num_inputs, dtype)
    bias = 10 * torch.randn(num_outputs, generator=generator(4)).to(dtype) if has_bias else None
    words = between_poison(module.pack_weight(weight), float("nan") if dtype == torch.float32 else 0x7FC07FC0)
    guarded = torch.full((num_tokens + 2 * GUARD, num_outputs), 7.0, dtype=dtype)

    def empty(shape, **options):
        assert (tuple(shape), options["dtype"]) == ((num_tokens, num_outputs), dtype)
        return guarded[GUARD:-GUARD].fill_(float("nan"))

    with patch.object(module, "torch", SimpleNamespace(**vars(torch) | {"empty": empty})):
        got = module.packed_linear(x, words, num_outputs, bias)
    for result in (got, module.packed_linear_reference(x, words, num_outputs, bias)):
        assert_linear(result, x, weight.double(), weight.double().abs(), bias, guarded, FP32_SUM_ERROR)


@pytest.mark.parametrize("dtype", DTYPES_OF_CPU, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(shape, dtype):
    check_packed_linear(packed_linear, shape, dtype, has_bias=shape[0] % 2 == 1)


def check_layout(module):
    """The words of a weight whose elements say where they are."""
    weight = (torch.arange(70)[:, None] + torch.arange(5)[None, :] / 8).float()  # exact in bfloat16 up to 32
    words, pairs = module.pack_weight(weight), module.pack_weight(weight.bfloat16())
    assert words.shape == pairs.shape == (2, 16, 64)
    assert (words[0, 3, 9], words[1, 4, 5]) == (9 + 3 / 8, 69 + 4 / 8)
    assert not words[1, :, 6:].any()
    assert not words[:, 5:].any()
    low, high = (pairs[0, 1, 9] << 16).view(torch.float32), (pairs[0, 1, 9] & -65536).view(torch.float32)
    assert (low.item(), high.item()) == (9 + 2 / 8, 9 + 3 / 8)
    assert pairs[0, 2, 9] & -65536 == 0, "there is no column 5"
    for one, packed in ((weight, words), (weight.bfloat16(), pairs)):
        assert torch.equal(module.unpack_weight(packed, 70, 5), one)


def check_small_layers(module):
    check_layout(module)
    for dtype in DTYPES_OF_CPU:
        check_packed_linear(module, (3, 65, 33), dtype)
    check_packed_linear(module, (1, 130, 100), torch.bfloat16, has_bias=False)


# -- codes

CODES = [(4, 70, 96, 32), (4, 130, 256, 64), (8, 70, 48, 48), (8, 130, 80, 80)]  # bits, O, I, group


def codes_of(module, bits, num_outputs, num_inputs, group):
    """Codes, the weight that they are, and the kernel's arguments of them."""
    rng = generator(0)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (num_outputs, num_inputs), generator=rng)
    scales = torch.rand(num_outputs, num_inputs // group, generator=rng)
    dense, packed = codes.double() * scales.double().repeat_interleave(group, 1), {"scales": module.pack_scales(scales)}
    if bits == 4:
        minima = -torch.rand(scales.shape, generator=rng) * 8
        dense += minima.double().repeat_interleave(group, 1)
        packed["minima"] = module.pack_scales(minima)
    return codes, dense, module.pack_code_words(codes, bits), packed


def check_packing(module):
    for bits, num_outputs, num_inputs, group in CODES:
        codes, _, words, _ = codes_of(module, bits, num_outputs, num_inputs, group)
        assert words.shape == (-(-num_outputs // 64), num_inputs * bits // 32, 64)
        assert torch.equal(module.unpack_code_words(words, bits, num_outputs), codes.int())
        assert words[0, 0, 1] & (2**bits - 1) == codes[1, 0] & (2**bits - 1), "the first code has the lowest bits"
    fitting = {(4, 64, 32): True, (4, 64, 16): False, (8, 32, 32): True, (8, 40, 40): False, (8, 64, 32): False}
    assert {each: module.fits(*each) for each in fitting} == fitting


def check_products(module, dtypes=DTYPES_OF_CPU, shapes=CODES):
    for bits, num_outputs, num_inputs, group in shapes:
        _, dense, words, packed = codes_of(module, bits, num_outputs, num_inputs, group)
        for dtype in dtypes:
            for num_rows in (0, 1, 3, 9):
                wide = torch.randn(num_rows, num_inputs + 3, generator=generator(num_rows))
                x = wide.to(dtype)[:, :num_inputs]
                bias = torch.linspace(-9, 9, num_outputs).to(dtype) if num_rows % 2 else None
                want = x.double() @ dense.T + (0 if bias is None else bias.double())
                absolute = {torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype] * (128 if bits == 8 else 16) * 16
                for product in (module.packed_linear, module.packed_linear_reference):
                    got = product(x, words, num_outputs, bias, **packed)
                    assert got.dtype == dtype
                    relative = 8e-3 if dtype == torch.bfloat16 else 1e-5
                    torch.testing.assert_close(got.double(), want, rtol=relative, atol=absolute)


@pytest.mark.parametrize("check", [check_packing, check_products], ids=lambda check: check.__name__)
def test_codes(check):
    check(packed_linear)


def test_no_access_is_astray():
    with triton_on_cpu.checked():
        check_small_layers(packed_linear)


# -- refusals

X, WORDS = torch.zeros(2, 3), torch.zeros(1, 16, 64)


def of_codes(**wrong):
    _, _, words, packed = codes_of(packed_linear, *CODES[0])
    given = {"x": torch.zeros(1, 96), "words": words, "num_outputs": 70, **packed}
    packed_linear.packed_linear(**given | {name: change(given[name]) for name, change in wrong.items()})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: packed_linear.packed_linear(X.half(), WORDS, 5), "packed in float32 or bfloat16, got torch.float16"),
        (lambda: packed_linear.packed_linear(X.mT, WORDS, 5), "x must be .* contiguous from I on"),
        (lambda: packed_linear.packed_linear(X, WORDS, 0), "num_outputs must be at least 1"),
        (lambda: packed_linear.packed_linear(X, WORDS, 65), r"words must be contiguous float32 \[B=2, W=16, 64\]"),
        (lambda: packed_linear.packed_linear(X, WORDS, 5, X[0, :2]), r"bias must be contiguous float32 \[O=5\]"),
        (lambda: of_codes(words=lambda words: words[:, :11]), "words must be"),
        (lambda: of_codes(scales=lambda scales: scales[:, :2]), "scales must be"),
        (lambda: of_codes(minima=lambda minima: minima[:1]), "minima must be"),
        (lambda: of_codes(words=lambda words: words.repeat(1, 2, 1), minima=lambda _: None), "8 bits of 96 columns have no"),
        (lambda: of_codes(scales=lambda _: None), "minima belong to codes of 4 bits"),
        (lambda: packed_linear.pack_weight(X.half()), "float32 or bfloat16, got torch.float16"),
        (lambda: packed_linear.pack_weight(X[0]), r"must be \[O, I\], .* got \[3\]"),
        (lambda: packed_linear.pack_weight(X[:0]), "neither of them 0"),
        (lambda: packed_linear.pack_code_words(torch.zeros(2, 12).long(), 4), "multiple of 8 columns, got 12"),
    ],
)  # fmt: skip
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("how", ["cuda", "emulated"])
def test_a_gpu_is_refused(how):
    with (
        patch.object(packed_linear, "mode", lambda dtype: how),
        pytest.raises(KernelsUnavailableError, match=f"a kernel for a CPU, and kernels are {how}"),
    ):
        packed_linear.packed_linear(X, WORDS, 5)


MUTANTS = {
    ("packed_linear",): [
        ("columns that are not there", "& (at_x < num_inputs)", "& (at_x < num_inputs + 64)", check_small_layers),
        ("rows as if packed", "[:, None] * x_row_stride", "[:, None] * num_inputs", check_small_layers),
        ("rows that are not there", "mask=mask_t & mask_o[None, :]", "mask=mask_o[None, :]", check_small_layers),
        ("last words left out", "range(0, num_words, BLOCK_W)", "range(0, num_words - 16, BLOCK_W)", check_small_layers),
        ("signs lost", "else (words << (24 - 8 * k)) >> 24", "else (words >> (8 * k)) & 255", check_products),
        ("the first group's scale", "group_offs = start // BLOCK_W * BLOCK_O + offs_o", "group_offs = offs_o", check_products),
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
