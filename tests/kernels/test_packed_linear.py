"""packed_linear against the product in fp64; small layers with each access verified, too."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

import triton_on_cpu
from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.elementwise import poisoned_memory
from tests.kernels.linear_cases import FP32_SUM_ERROR, GUARD, activations, assert_linear, between_poison
from tests.mutation import KillTable, Mutant
from twophase_kernels import KernelsUnavailableError, packed_linear

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="not run here: a kernel for CPUs")

# (T, O, I): one element; one block exactly; rests of rows, outputs, columns, and of a pair of columns; full tiles of rows.
SHAPES = [(1, 1, 1), (1, 64, 32), (3, 65, 33), (2, 130, 100), (8, 63, 64), (11, 70, 17)]
DTYPES_OF_CPU = [dtype for dtype in DTYPES if dtype != torch.float16]


def weight_of(num_outputs, num_inputs, dtype):
    return torch.randn(num_outputs, num_inputs, generator=generator(3)).to(dtype)


def check_packed_linear(module, shape, dtype=torch.float32, has_bias=True):
    num_tokens, num_outputs, num_inputs = shape
    x = activations(num_tokens, num_inputs, dtype, HERE)
    weight = weight_of(num_outputs, num_inputs, dtype)
    bias = 10 * torch.randn(num_outputs, generator=generator(4)).to(dtype) if has_bias else None
    words = between_poison(module.pack_weight(weight), float("nan") if dtype == torch.float32 else 0x7FC07FC0)
    guarded = torch.full((num_tokens + 2 * GUARD, num_outputs), 7.0, dtype=dtype)

    def empty(shape, **options):
        assert (tuple(shape), options["dtype"]) == ((num_tokens, num_outputs), dtype)
        return guarded[GUARD:-GUARD].fill_(float("nan"))

    with patch.object(module, "torch", SimpleNamespace(**vars(torch) | {"empty": empty})):
        got = module.packed_linear(x, words, num_outputs, bias)
    assert_linear(got, x, weight.double(), weight.double().abs(), bias, guarded, FP32_SUM_ERROR)


def check_layout(module):
    """The words of a weight whose elements say where they are."""
    weight = (torch.arange(70)[:, None] + torch.arange(5)[None, :] / 8).float()  # exact in bfloat16 up to 32
    words = module.pack_weight(weight)
    assert words.shape == (2, 16, 64)
    assert words[0, 3, 9] == 9 + 3 / 8
    assert words[1, 4, 5] == 69 + 4 / 8
    assert not words[1, :, 6:].any()
    assert not words[:, 5:].any()
    pairs = module.pack_weight(weight.bfloat16())
    assert pairs.shape == (2, 16, 64)
    low, high = (pairs[0, 1, 9] << 16).view(torch.float32), (pairs[0, 1, 9] & -65536).view(torch.float32)
    assert (low.item(), high.item()) == (9 + 2 / 8, 9 + 3 / 8)
    assert pairs[0, 2, 9] & -65536 == 0, "there is no column 5"
    for one, packed in ((weight, words), (weight.bfloat16(), pairs)):
        assert torch.equal(module.unpack_weight(packed, 70, 5), one)


@pytest.mark.parametrize("dtype", DTYPES_OF_CPU, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(shape, dtype):
    check_packed_linear(packed_linear, shape, dtype, has_bias=shape[0] % 2 == 1)


def test_layout():
    check_layout(packed_linear)


def check_small_layers(module):
    check_layout(module)
    for dtype in DTYPES_OF_CPU:
        check_packed_linear(module, (3, 65, 33), dtype)
    check_packed_linear(module, (1, 130, 100), torch.bfloat16, has_bias=False)


def test_no_access_is_astray():
    with triton_on_cpu.checked():
        check_small_layers(packed_linear)


def test_reference():
    def reference(x, words, num_outputs, bias):
        return packed_linear.packed_linear_reference(x, words, num_outputs, bias)

    for dtype in (torch.float32, torch.bfloat16):
        x, weight = activations(3, 33, dtype, "cpu"), weight_of(65, 33, dtype)
        got = reference(x, packed_linear.pack_weight(weight), 65, None)
        guarded = torch.full((2 * GUARD, 1), 7.0)
        assert_linear(got, x, weight.double(), weight.double().abs(), None, guarded, FP32_SUM_ERROR)


def test_nothing_to_do():
    words = packed_linear.pack_weight(weight_of(5, 3, torch.float32))
    with poisoned_memory():
        assert packed_linear.packed_linear(torch.empty(0, 3), words, 5).shape == (0, 5)


X, WORDS = torch.zeros(2, 3), torch.zeros(1, 16, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.half(), WORDS, 5), "packed in float32 or bfloat16, got torch.float16"),
        ((torch.zeros(3, 2).T, WORDS, 5), "x must be .* contiguous from I on"),
        ((X, WORDS, 0), "num_outputs must be at least 1"),
        ((X, WORDS, 65), r"words must be contiguous float32 \[B=2, W=16, 64\]"),
        ((X, WORDS, 5, torch.zeros(4)), r"bias must be contiguous float32 \[O=5\]"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        packed_linear.packed_linear(*arguments)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(2, 3).half(), "float32 or bfloat16, got torch.float16"),
        (torch.zeros(2), r"must be \[O, I\], .* got \[2\]"),
        (torch.zeros(0, 3), "neither of them 0"),
    ],
)
def test_wrong_weights(weight, message):
    with pytest.raises(ValueError, match=message):
        packed_linear.pack_weight(weight)


@pytest.mark.parametrize("how", ["cuda", "emulated"])
def test_a_gpu_is_refused(how):
    with (
        patch.object(packed_linear, "mode", lambda dtype: how),
        pytest.raises(KernelsUnavailableError, match=f"a kernel for a CPU, and kernels are {how}"),
    ):
        packed_linear.packed_linear(X, WORDS, 5)


MUTANTS = [
    ("last column dropped", "& (at_x < num_inputs)", "& (at_x < num_inputs - 1)"),
    ("columns that are not there", "& (at_x < num_inputs)", "& (at_x < num_inputs + 64)"),
    ("even for odd", "+ tl.arange(0, COLUMNS)[None, :, None]", "+ 0 * tl.arange(0, COLUMNS)[None, :, None]"),
    ("halves swapped", "+ tl.arange(0, COLUMNS)[None, :, None]", "+ (COLUMNS - 1 - tl.arange(0, COLUMNS))[None, :, None]"),
    ("words as columns", "(start * COLUMNS + tl.arange(0, BLOCK_W * COLUMNS))[None, :]", "(start + tl.arange(0, BLOCK_W * COLUMNS))[None, :]"),
    ("rows as if packed", "[:, None] * x_row_stride", "[:, None] * num_inputs"),
    ("rows that are not there", "mask=mask_t & mask_o[None, :]", "mask=mask_o[None, :]"),
    ("outputs that are not there", "mask_o = outputs < num_outputs", "mask_o = outputs < num_outputs + 1"),
    ("one block for all", "words_ptr += block * num_words * BLOCK_O", "words_ptr += 0 * block * num_words * BLOCK_O"),
    ("bias left out", "        total += tl.load(bias_ptr", "        total += 0 * tl.load(bias_ptr"),
    ("last words left out", "range(0, num_words, BLOCK_W)", "range(0, num_words - 16, BLOCK_W)"),
    ("last sum alone", "[BLOCK_W * COLUMNS, BLOCK_O]), total,", "[BLOCK_W * COLUMNS, BLOCK_O]), 0 * total,"),
    ("padding of outputs as columns", "padded.unflatten(0, (-1, BLOCK_OUTPUTS)).transpose(1, 2)", "padded.unflatten(0, (-1, BLOCK_OUTPUTS)).mT.mT"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_kernels.packed_linear", old, new), check_small_layers)
