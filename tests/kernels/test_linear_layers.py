"""quantized_linear against the product in fp64; and what holds for every kernel that multiplies by weights of few bits."""

import dataclasses
import math

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import selected
from tests.kernels.elementwise import kept_workspace, poisoned_memory
from tests.kernels.linear_cases import SMALL_TILES, LinearPoint, check_linear, make_codes, sample_points
from twophase_kernels import fp8_linear, quantized_linear
from twophase_kernels.packed_codes import pack_codes

pytest.importorskip("triton", reason="not run here: no triton")

MODULES = {"int4": quantized_linear, "int8": quantized_linear, "fp8": fp8_linear}
KINDS = pytest.mark.parametrize("kind", MODULES)


def multiply(kind, **arguments):
    return getattr(MODULES[kind], "fp8_linear" if kind == "fp8" else "quantized_linear")(**arguments)


def layer(kind, num_tokens=5, num_outputs=20, num_inputs=256, group=32, dtype=torch.float32):
    """A layer's arguments."""
    rng = generator(0)
    x = torch.randn(num_tokens, num_inputs, generator=rng).to(HERE, dtype)
    if kind == "fp8":
        x, x_scales = fp8_linear.quantise_tokens(x)
        weight, scales = fp8_linear.quantise_tokens(torch.randn(num_outputs, num_inputs, generator=rng).to(HERE))
        return {"x": x, "x_scales": x_scales, "weight": weight, "scales": scales, "dtype": dtype}
    if kind == "int8":
        packed = pack_codes(make_codes(num_outputs, num_inputs, -128, 127), 8).to(HERE)
        return {"x": x, "packed": packed, "scales": torch.rand(num_outputs, generator=rng).to(HERE)}
    packed = pack_codes(make_codes(num_outputs, num_inputs, 0, 15), 4).to(HERE)
    scales = torch.rand(num_inputs // group, num_outputs, generator=rng).to(HERE)
    return {"x": x, "packed": packed, "scales": scales, "minima": -scales}


@pytest.mark.parametrize("point", sample_points(1), ids=str)
def test_each_value(point):
    check_linear(quantized_linear, point)


@pytest.mark.full
@pytest.mark.parametrize("point", sample_points(2), ids=str)
def test_every_pair_of_values(point):
    check_linear(quantized_linear, point)


@pytest.mark.parametrize(("num_splits", "group"), selected((1, 2, 3, 4, 5, 9, 16), (32, 0)))
def test_splits(num_splits, group):
    """Also more splits than steps: those without columns give zeros."""
    check_linear(quantized_linear, LinearPoint(5, 40, 1120, group, group == 32, num_splits=num_splits, has_bias=True))


# -- what holds for each


@KINDS
def test_the_same_call_gives_the_same_bits(kind):
    arguments = layer(kind, num_inputs=1024)
    tensors = [value.view(torch.uint8) for value in arguments.values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    first = multiply(kind, **arguments, num_splits=4)
    for _ in range(3):
        with poisoned_memory():
            assert torch.equal(multiply(kind, **arguments, num_splits=4), first)
    assert all(map(torch.equal, tensors, before)), "an input was overwritten"


@KINDS
def test_a_token_does_not_feel_the_others(kind):
    """Not even if they are infinite."""
    arguments = layer(kind)
    want, name = multiply(kind, **arguments), "x_scales" if kind == "fp8" else "x"
    others = arguments[name].clone()
    others[[0, 1, 3, 4]] = math.inf
    assert torch.equal(multiply(kind, **arguments | {name: others})[2], want[2])


@KINDS
def test_an_output_does_not_feel_the_others(kind):
    """The scales of the rest of the tile are NaN."""
    arguments = layer(kind)
    want, scales = multiply(kind, **arguments), arguments["scales"].clone()
    scales[..., [0, *range(2, 20)]] = math.nan
    got = multiply(kind, **arguments | {"scales": scales})
    assert torch.equal(got[:, 1], want[:, 1])
    assert got[:, 2:].isnan().all()


@KINDS
@pytest.mark.parametrize("shape", [{"num_tokens": 0}, {"num_outputs": 0}], ids=str)
def test_nothing_to_do(kind, shape):
    sizes = {"num_tokens": 5, "num_outputs": 20} | shape
    for num_splits in (1, 2):
        assert multiply(kind, **layer(kind, **shape), num_splits=num_splits).shape == tuple(sizes.values())


@KINDS
def test_writes_where_it_is_told(kind):
    arguments, out = layer(kind), torch.empty(5, 20, device=HERE)
    want = multiply(kind, **arguments, num_splits=2)
    with kept_workspace(MODULES[kind], guard=3) as kept:
        assert multiply(kind, **arguments, num_splits=2, out=out) is out
    assert torch.equal(out, want)
    assert kept[0].isnan().tolist() == [False] * (2 * 5 * 20) + [True] * 3, "the workspace is used as a whole"


@pytest.mark.parametrize(("group", "dtype"), selected((32, 64, 128, 0), DTYPES))
def test_scales_of_the_same_dtype(group, dtype):
    """They are read as they are, and count as the fp32 numbers of their values."""
    kind = "int4" if group else "int8"
    arguments = layer(kind, group=group, dtype=dtype)
    rounded = {name: arguments[name].to(dtype) for name in ("scales", "minima") if name in arguments}
    got = multiply(kind, **arguments | rounded)
    assert got.dtype == dtype
    assert torch.equal(got, multiply(kind, **arguments | {name: x.float() for name, x in rounded.items()}))


def other(*shape):
    return lambda _: torch.zeros(*shape, device=HERE)


def tiles(block_i):
    return lambda _: dataclasses.replace(SMALL_TILES, block_i=block_i)


REFUSALS = {
    "int4": [
        ({"x": lambda x: x.T.contiguous().T}, "x must be .* contiguous from I on"),
        ({"x": lambda x: x[:, :128]}, r"packed must be contiguous int16 \[runs=1, O, 32\]"),
        ({"scales": lambda s: s[0]}, r"minima are for 4 bits, .* got scales \[20\]"),
        ({"scales": lambda s: s.repeat(2, 1), "minima": lambda _: None}, "of which I = 256 must be a multiple"),
        ({"scales": lambda s: s[:, :9].contiguous()}, r"scales must be contiguous .*\[groups, O=20\]"),
        ({"minima": lambda m: m[:1]}, r"minima must be contiguous .*\[groups=8, O=20\]"),
        ({"bias": other(3)}, r"bias must be contiguous .*\[O=20\]"),
        ({"num_splits": lambda _: 17}, "num_splits must be 1 to 16, got 17"),
        ({"out": other(5, 21)}, "out must be contiguous"),
        ({"tiles": tiles(64)}, "block_i must be 128"),
    ],
    "int8": [
        ({"scales": lambda s: s[:19]}, r"scales must be contiguous .*\[O=20\]"),
        ({"packed": lambda p: p[:3]}, r"packed must be contiguous int16 \[runs=4, O, 32\]"),
        ({"tiles": tiles(32)}, "block_i must be a multiple of 64"),
    ],
    "fp8": [
        ({"x": lambda x: x.float()}, "x must be contiguous float8_e4m3fn"),
        ({"x": lambda x: x[:, :48].contiguous()}, r"weight must be contiguous float8_e4m3fn \[O, I=48\]"),
        ({name: lambda x: x[:, :24].contiguous() for name in ("x", "weight")}, "a multiple of 16 columns, got 24"),
        ({"x_scales": lambda s: s.half()}, r"x_scales must be contiguous float32 \[T=5\]"),
        ({"scales": lambda s: s[:4]}, r"scales must be contiguous .*\[O=20\]"),
        ({"dtype": lambda _: torch.int8}, "dtype must be float32, float16 or bfloat16"),
        ({"bias": other(4)}, r"bias must be contiguous .*\[O=20\]"),
        ({"num_splits": lambda _: 0}, "num_splits must be 1 to 16"),
        ({"out": other(5, 2)}, "out must be contiguous"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"), [(kind, *row) for kind, rows in REFUSALS.items() for row in rows]
)
def test_refuses(kind, changes, message):
    arguments = layer(kind)
    with pytest.raises(ValueError, match=message):
        multiply(kind, **arguments | {name: change(arguments.get(name)) for name, change in changes.items()})
