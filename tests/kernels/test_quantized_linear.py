"""quantized_linear against the product in fp64 with the weights written out."""

import dataclasses
import math

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import selected
from tests.kernels.elementwise import kept_workspace, poisoned_memory
from tests.kernels.linear_cases import SMALL_TILES, LinearPoint, check_linear, make_codes, sample_points
from twophase_kernels import quantized_linear as module
from twophase_kernels.linear_splits import LinearTiles
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import (
    quantized_linear,
    quantized_linear_reference,
    quantized_linear_tiles,
)

pytest.importorskip("triton", reason="not run here: no triton")

SAMPLE = sample_points(70)


@pytest.mark.parametrize(
    "point", [pytest.param(p, id=str(p), marks=() if i < 7 else pytest.mark.full) for i, p in enumerate(SAMPLE)]
)
def test_ragged(point):
    check_linear(module, point)


# SmolLM2's layers: qkv, output, down; some rows of the vocabulary.
SMOLLM2 = ((960, 576), (576, 576), (576, 1536), (2051, 576))


@pytest.mark.parametrize(("shape", "group"), selected(SMOLLM2, (32, 64, 0), strength=1))
def test_smollm2(shape, group):
    dtype = DTYPES[1]
    check_linear(module, LinearPoint(3, *shape, group, group == 32, dtype, num_splits=1, tiles=None))
    check_linear(module, LinearPoint(1, *shape, group, False, dtype, num_splits=2, tiles=None))


@pytest.mark.parametrize(("num_splits", "group"), selected((1, 2, 3, 4, 5, 9, 16), (32, 0), strength=1))
def test_splits(num_splits, group):
    """Also more splits than steps: those without columns give zeros."""
    check_linear(module, LinearPoint(5, 40, 1120, group, group == 32, num_splits=num_splits, has_bias=True))


@pytest.mark.parametrize(("dtype", "group"), selected(DTYPES, (32, 64, 128, 0), strength=1))
def test_scales_of_the_same_dtype(dtype, group):
    """They are read as they are, and count as the fp32 numbers of their values."""
    x, (packed, *scales) = small_layer(group, dtype=dtype)
    function, reference = quantized_linear, quantized_linear_reference
    rounded = [tensor.to(dtype) for tensor in scales]
    got = function(x, packed, *rounded)
    assert got.dtype == dtype
    assert torch.equal(got, function(x, packed, *(tensor.float() for tensor in rounded)))
    torch.testing.assert_close(got, reference(x, packed, *rounded), rtol=1e-2, atol=1e-3)


def small_layer(group=32, num_tokens=5, num_outputs=20, num_inputs=256, dtype=torch.float32):
    """(x, the other arguments), with minima if there are groups."""
    rng = generator(0)
    x = torch.randn(num_tokens, num_inputs, generator=rng).to(HERE, dtype)
    if not group:
        codes = make_codes(num_outputs, num_inputs, -128, 127)
        return x, (pack_codes(codes, 8).to(HERE), torch.rand(num_outputs, generator=rng).to(HERE))
    scales = torch.rand(num_inputs // group, num_outputs, generator=rng).to(HERE)
    return x, (pack_codes(make_codes(num_outputs, num_inputs, 0, 15), 4).to(HERE), scales, -scales)


@pytest.mark.parametrize("group", [32, 0])
def test_the_reference(group):
    """Small integers, so that everything is exact: w = 0.5 code (- 2), written out here by hand."""
    x = torch.arange(2 * 64).view(2, 64).float() % 5
    codes = make_codes(3, 64, 0, 15)
    if group:
        got = quantized_linear_reference(x, pack_codes(codes, 4), torch.full((2, 3), 0.5), torch.full((2, 3), -2.0))
        w = 0.5 * codes - 2
    else:
        got = quantized_linear_reference(x, pack_codes(codes, 8), torch.full((3,), 0.5), bias=torch.tensor([1.0, 2, 3]))
        w = 0.5 * codes
    want = torch.tensor(
        [[sum(a * b for a, b in zip(row, column, strict=True)) for column in w.tolist()] for row in x.tolist()]
    )
    assert torch.equal(got, want if group else want + torch.tensor([1.0, 2, 3]))


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("group", [32, 0])
def test_the_same_call_gives_the_same_bits(num_splits, group):
    function = quantized_linear
    x, args = small_layer(group, num_inputs=1024)
    first = function(x, *args, num_splits=num_splits)
    for _ in range(3):
        with poisoned_memory():
            assert torch.equal(function(x, *args, num_splits=num_splits), first)


@pytest.mark.parametrize("group", [32, 0])
def test_a_token_does_not_feel_the_others(group):
    """Not even if they are infinite."""
    function = quantized_linear
    x, args = small_layer(group)
    want = function(x, *args)
    others = x.clone()
    others[[0, 1, 3, 4]] = math.inf
    assert torch.equal(function(others, *args)[2], want[2])


@pytest.mark.parametrize("group", [32, 0])
def test_an_output_does_not_feel_the_others(group):
    """The scales of the rest of the tile are NaN."""
    function = quantized_linear
    x, args = small_layer(group)
    want = function(x, *args)
    scales = args[1].clone()
    scales[..., [0, *range(2, 20)]] = math.nan
    got = function(x, args[0], scales, *args[2:])
    assert torch.equal(got[:, 1], want[:, 1])
    assert got[:, 2:].isnan().all()


@pytest.mark.parametrize("group", [32, 0])
def test_nothing_to_do(group):
    function, reference = quantized_linear, quantized_linear_reference
    for shape in ({"num_tokens": 0}, {"num_outputs": 0}):
        x, args = small_layer(group, **shape)
        for num_splits in (1, 2):
            assert function(x, *args, num_splits=num_splits).shape == (len(x), args[0].shape[1])
        assert reference(x, *args).shape == (len(x), args[0].shape[1])


def test_writes_where_it_is_told():
    x, args = small_layer(32)
    want = quantized_linear(x, *args, num_splits=2)
    out = torch.empty(5, 20, device=HERE)
    with kept_workspace(module, guard=3) as kept:
        assert quantized_linear(x, *args, num_splits=2, out=out) is out
    assert torch.equal(out, want)
    (workspace,) = kept
    assert len(workspace) == 2 * 5 * 20 + 3
    assert workspace[-3:].isnan().all()
    assert workspace[:-3].isfinite().all()


def test_inputs_are_left_as_they_are():
    x, args = small_layer(32)
    before = [tensor.clone() for tensor in (x, *args)]
    quantized_linear(x, *args, num_splits=2)
    assert all(torch.equal(a, b) for a, b in zip((x, *args), before, strict=True))


INT4_REFUSALS = {
    "x has one dimension": ({"x": lambda x: x[0]}, r"x must be .* \[T, I\]"),
    "x in float64": ({"x": lambda x: x.double()}, r"x must be .* \[T, I\], .*float64"),
    "x in columns": ({"x": lambda x: x.T.contiguous().T}, "x must be .* contiguous from I on"),
    "x without columns": ({"x": lambda x: x[:, :0]}, r"packed must be contiguous int16 \[runs=0, O, 32\]"),
    "x of other width": ({"x": lambda x: x[:, :128]}, r"packed must be contiguous int16 \[runs=1, O, 32\]"),
    "packed in bytes": ({"packed": lambda p: p.view(torch.uint8)}, "packed must be contiguous int16"),
    "no groups": ({"scales": lambda s: s[0]}, r"minima are for 4 bits, .* got scales \[20\]"),
    "groups of 16": (
        {"scales": lambda s: s.repeat(2, 1), "minima": lambda _: None},
        "of which I = 256 must be a multiple",
    ),
    "a group's rest": (
        {"scales": lambda s: s[:3].contiguous(), "minima": lambda _: None},
        "of which I = 256 must be a multiple",
    ),
    "scales of other outputs": (
        {"scales": lambda s: s[:, :9].contiguous()},
        r"scales must be contiguous .*\[groups, O=20\]",
    ),
    "scales in columns": ({"scales": lambda s: s.T.contiguous().T}, r"scales must be contiguous .*\[groups, O=20\]"),
    "integer scales": ({"scales": lambda s: s.int()}, r"scales must be contiguous float32 or float16 or bfloat16"),
    "minima of other shape": ({"minima": lambda m: m[:1]}, r"minima must be contiguous .*\[groups=8, O=20\]"),
    "bias of other shape": ({"bias": lambda _: torch.zeros(3, device=HERE)}, r"bias must be contiguous .*\[O=20\]"),
    "no splits": ({"num_splits": lambda _: 0}, "num_splits must be 1 to 16, got 0"),
    "too many splits": ({"num_splits": lambda _: 17}, "num_splits must be 1 to 16, got 17"),
    "out of other shape": ({"out": lambda _: torch.zeros(5, 21, device=HERE)}, "out must be contiguous"),
    "out of other dtype": ({"out": lambda _: torch.zeros(5, 20, device=HERE).half()}, "out must be contiguous"),
    "tiles of half a run": ({"tiles": lambda _: dataclasses.replace(SMALL_TILES, block_i=64)}, "block_i must be 128"),
}


@pytest.mark.parametrize("case", INT4_REFUSALS)
def test_int4_refuses(case):
    changes, message = INT4_REFUSALS[case]
    x, (packed, scales, minima) = small_layer(32)
    args = {"x": x, "packed": packed, "scales": scales, "minima": minima}
    with pytest.raises(ValueError, match=message):
        quantized_linear(**args | {name: change(args.get(name)) for name, change in changes.items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": lambda s: s[:19]}, r"scales must be contiguous .*\[O=20\]"),
        ({"scales": lambda s: s[None]}, r"packed must be contiguous int16 \[runs=2, O, 32\]"),
        ({"packed": lambda p: p[:3]}, r"packed must be contiguous int16 \[runs=4, O, 32\]"),
        ({"tiles": lambda _: dataclasses.replace(SMALL_TILES, block_i=32)}, "block_i must be a multiple of 64"),
    ],
    ids=["scales", "groups", "packed", "tiles"],
)
def test_int8_refuses(changes, message):
    x, (packed, scales) = small_layer(0)
    args = {"x": x, "packed": packed, "scales": scales}
    with pytest.raises(ValueError, match=message):
        quantized_linear(**args | {name: change(args.get(name)) for name, change in changes.items()})


def test_tiles():
    """Few tokens get the narrowest tile; Blackwell's memory for sums bounds its width; fp32 stays off matrix units."""

    def block_t(num_tokens, group=32, has_minima=True, dtype=torch.bfloat16, generation="ampere"):
        return quantized_linear_tiles(num_tokens, 4096, group, has_minima, dtype, generation).block_t

    assert [block_t(n) for n in (0, 1, 8, 9, 16, 17, 64, 65, 4096)] == [8, 8, 8, 16, 16, 32, 64, 64, 64]
    assert block_t(64, generation="hopper") == 32
    assert block_t(64, group=64, has_minima=False, generation="hopper") == 64
    assert block_t(64, group=0, has_minima=False, generation="hopper") == 64
    assert block_t(1, generation="cdna") == 16
    fp32 = quantized_linear_tiles(64, 4096, 32, False, torch.float32, "hopper")
    assert fp32.block_o < 64
    assert isinstance(fp32, LinearTiles)
