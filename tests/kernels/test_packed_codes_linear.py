"""packed_linear with codes of 4 and 8 bits, and its reference, against the product in fp64."""

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase_kernels import packed_linear

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: kernels for CPUs")

SHAPES = [(4, 70, 96, 32), (4, 130, 256, 64), (8, 70, 48, 48), (8, 130, 80, 80)]


def weight_of(module, bits, num_outputs, num_inputs, group, seed=0):
    """Codes, and the kernel's arguments of them."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (num_outputs, num_inputs), generator=generator)
    scales = torch.rand(num_outputs, num_inputs // group, generator=generator)
    minima = -torch.rand(scales.shape, generator=generator) * 8 if bits == 4 else None
    packed = {"scales": module.pack_scales(scales)} | ({} if minima is None else {"minima": module.pack_scales(minima)})
    dense = codes.float() * scales.repeat_interleave(group, 1)
    if minima is not None:
        dense += minima.repeat_interleave(group, 1)
    return codes, dense, module.pack_code_words(codes, bits), packed


def check_packing(module):
    for bits, num_outputs, num_inputs, group in SHAPES:
        codes, _, words, packed = weight_of(module, bits, num_outputs, num_inputs, group)
        assert words.shape == (-(-num_outputs // 64), num_inputs * bits // 32, 64)
        assert torch.equal(module.unpack_code_words(words, bits, num_outputs), codes.int())
        assert words[0, 0, 1] & (2**bits - 1) == codes[1, 0] & (2**bits - 1), "the first code has the lowest bits"
        assert packed["scales"].is_contiguous()
    with pytest.raises(ValueError, match="multiple of 8 columns, got 12"):
        module.pack_code_words(torch.zeros(2, 12, dtype=torch.int64), 4)
    assert [module.fits(*each) for each in [(4, 64, 32), (4, 64, 16), (8, 32, 32), (8, 40, 40), (8, 64, 32), (2, 64, 32)]] == [True, False, True, False, False, False]  # fmt: skip


def check_products(module, dtypes=(torch.float32, torch.bfloat16), shapes=SHAPES):
    for bits, num_outputs, num_inputs, group in shapes:
        _, dense, words, packed = weight_of(module, bits, num_outputs, num_inputs, group)
        for dtype in dtypes:
            for num_rows in (0, 1, 3, 9):
                wide = torch.randn(num_rows, num_inputs + 3, generator=torch.Generator().manual_seed(num_rows))
                x = wide.to(dtype)[:, :num_inputs]
                for bias in (None, torch.linspace(-9, 9, num_outputs).to(dtype))[num_rows % 2 :]:
                    want = x.double() @ dense.double().T + (0 if bias is None else bias.double())
                    tolerance = {torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype] * (128 if bits == 8 else 16) * 16
                    for product in (module.packed_linear, module.packed_linear_reference):
                        got = product(x, words, num_outputs, bias, **packed)
                        assert got.dtype == dtype
                        torch.testing.assert_close(
                            got.double(), want, rtol=8e-3 if dtype == torch.bfloat16 else 1e-5, atol=tolerance
                        )


def check_refusals(module):
    _, _, words, packed = weight_of(module, 4, 70, 96, 32)
    x, bias = torch.zeros(1, 96), torch.zeros(71)
    scales, minima = packed.values()
    wrong = {
        "words must be": {"words": words[:, :11]},
        "scales must be": {"scales": scales[:, :2]},
        "minima must be": {"minima": minima[:1]},
        "8 bits of 96 columns have no scales": {"words": words.repeat(1, 2, 1), "minima": None},
        "minima belong to codes of 4 bits": {"scales": None},
        "bias must be": {"bias": bias},
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            module.packed_linear(**{"x": x, "words": words, "num_outputs": 70, **packed, **arguments})


CHECKS = [check_packing, check_products, check_refusals]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_kernel(check):
    check(packed_linear)


MUTANTS = [
    ("the last code twice", check_products, "x7 = _columns(x_rows_ptr, at, 7,", "x7 = _columns(x_rows_ptr, at, 6,"),
    ("signs lost", check_products, "else (words << (24 - 8 * k)) >> 24", "else (words >> (8 * k)) & 255"),
    ("minima left out", check_products, " + x_sum[:, None] * minimum[None, :]", ""),
    ("the first group's scale", check_products, "group_offs = start // BLOCK_W * BLOCK_O + offs_o", "group_offs = offs_o"),
    ("the first block's scales", check_products, "        scales_ptr += block * BLOCK_O\n", "        scales_ptr += 0\n"),
    ("dense rows", check_products, "words.shape[1], x.stride(0),", "words.shape[1], x.shape[1],"),
    ("the first code highest", check_packing, "<< (bits * k) for k", "<< (32 - bits - bits * k) for k"),
    ("any group", check_packing, "return group_size in GROUPS", "return True"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "check", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, check, old, new):
    KillTable.record(Mutant(name, "twophase_kernels.packed_linear", old, new), check)
