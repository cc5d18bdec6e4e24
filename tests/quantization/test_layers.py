"""Weights rounded at load time, and the layers that multiply by them, against plain arithmetic in float64."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.mutation import KillTable, Mutant
from tests.quantization.weight_memory import weight_memory_bytes
from twophase.core.errors import ConfigError
from twophase_features.quantization import linear, rounding, weight
from twophase_features.quantization.kernel_linear import KernelLinear, kernel_for
from twophase_features.quantization.linear import PackedLinear, make_quantized_linear
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES, Scheme, head_scheme
from twophase_features.quantization.weight import QuantizedWeight, can_stack, pack_nibbles

OUTPUTS, INPUTS = 48, 128


def random_weight(seed=0, outputs=OUTPUTS, inputs=INPUTS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(outputs, inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)


def check_rounding(module):
    """Every weight is at most half a step from its code's value, but for what 16-bit scales cost at the ends; groups do
    not touch each other; and the codes are used to the last."""
    plain = random_weight()
    for name, scheme in SCHEMES.items():
        rounded = module.quantize(plain, scheme)
        error = (rounded.dequantize() - plain).abs().unflatten(1, (rounded.scales.shape[1], -1))
        if scheme.is_float:
            value = plain.abs().unflatten(1, (1, -1))
            assert bool((error <= value / 16 + rounded.scales[..., None] / 1024).all()), name
            continue
        last = 2**scheme.bits
        ends = last / 512 * rounded.scales[..., None]  # a scale that is a 512th too small, at code `last`
        assert bool((error <= 0.5001 * rounded.scales[..., None] + ends).all()), name
        expected = INPUTS // (scheme.group_size or INPUTS)
        assert rounded.scales.shape == (OUTPUTS, expected), name
        assert (rounded.minima is None) == scheme.is_symmetric, name
        codes = rounded.codes.int().unflatten(1, (expected, -1))
        lowest = -last // 2 if scheme.is_symmetric else 0
        assert int(codes.min()) >= lowest, name
        assert int(codes.max()) <= lowest + last - 1, name
        reach = codes.amax(-1) - codes.amin(-1)
        assert int(reach.min()) >= (last // 2 - 2 if scheme.is_symmetric else last - 2), name
        for tensor in (rounded.scales, None if rounded.minima is None else rounded.minima + last // 2 * rounded.scales):
            assert tensor is None or torch.equal(tensor, tensor.bfloat16().float()), name


def test_rounding():
    check_rounding(rounding)


def test_rows_of_zeros_and_of_one_value():
    plain = torch.zeros(3, INPUTS)
    plain[1] = 0.25
    plain[2] = -3
    for scheme in SCHEMES.values():
        got = quantize(plain, scheme).dequantize()
        assert torch.allclose(got, plain, rtol=0.01, atol=0), scheme


def test_bytes_of_a_scheme_are_those_stored():
    for name, scheme in SCHEMES.items():
        rounded = quantize(random_weight(), scheme)
        codes = pack_nibbles(rounded.codes) if scheme.bits == 4 else rounded.codes
        in_16_bits = 2 * rounded.scales.numel() * (1 if rounded.minima is None else 2)
        assert scheme.num_bytes(OUTPUTS, INPUTS) == codes.nbytes + in_16_bits, name
    assert Scheme(4, 32, False).num_bytes(8, 64) == 320
    assert head_scheme(SCHEMES["int4"]) == SCHEMES["int8"]
    assert head_scheme(SCHEMES["int8_dynamic"]) == SCHEMES["int8_dynamic"]


def check_slices(module):
    """Parts of a weight are the weights of parts, and nibbles come back."""
    for scheme, order in product((SCHEMES["int4"], SCHEMES["int8"], SCHEMES["int4_sym"]), (None, 1)):
        whole = as_of(module, quantize(random_weight(), scheme))
        if order is not None:
            whole = replace(whole, activations=None, input_order=torch.randperm(INPUTS))
            sorted_back = as_of(module, whole).dequantize()[:, whole.input_order.argsort()]
            assert torch.equal(whole.dequantize(), sorted_back)
        plain = whole.dequantize()
        assert torch.equal(whole[5:20].dequantize(), plain[5:20])
        assert torch.equal(whole[3:9, 0:INPUTS].dequantize(), plain[3:9])
        both = module.stack([whole[:7], whole[30:]])
        assert torch.equal(both.dequantize(), torch.cat((plain[:7], plain[30:])))
        if order is None:
            assert torch.equal(whole[:, 32:96].dequantize(), plain[:, 32:96])
        signed = whole.minima is None
        if scheme.bits == 4:
            packed = module.pack_nibbles(whole.codes)
            assert packed.shape == (OUTPUTS, INPUTS // 2)
            assert torch.equal(module.unpack_nibbles(packed, signed), whole.codes)
            every = torch.arange(-8, 8, dtype=torch.int8)[None] if signed else torch.arange(16, dtype=torch.int8)[None]
            assert torch.equal(module.unpack_nibbles(module.pack_nibbles(every), signed), every)
            assert int(packed[0, 0]) == (int(whole.codes[0, 0]) & 15) + 16 * (int(whole.codes[0, 1]) & 15)


def as_of(module, rounded):
    return module.QuantizedWeight(rounded.codes, rounded.scales, rounded.minima, rounded.bits, rounded.activations)


def test_slices():
    check_slices(weight)


def test_a_group_cannot_be_cut():
    rounded = quantize(random_weight(), SCHEMES["int4"])
    with pytest.raises(ConfigError, match=r"tensor_parallel_size would cut a group of 32 quantised weights in two"):
        rounded[:, 0:48]
    shuffled = replace(rounded, input_order=torch.randperm(INPUTS))
    with pytest.raises(ConfigError, match=r"tensor_parallel_size .*desc_act"):
        shuffled[:, 0:64]


def test_only_weights_of_one_kind_are_stacked():
    int4, sym, int8 = (quantize(random_weight(), SCHEMES[name]) for name in ("int4", "int4_sym", "int8"))
    order = replace(int4, input_order=torch.arange(INPUTS).flip(0))
    assert all(can_stack(alike) for alike in ([int4, int4], [order, order], [order]))
    assert not any(can_stack(pair) for pair in ([int4, sym], [int4, int8], [int4, order]))


def reference(x, rounded, bias):
    """In float64, from the codes; activations of 8 bits rounded as the scheme says."""
    x = x.double().numpy()
    if rounded.activations == "int8":
        scales = np.abs(x).max(axis=1, keepdims=True) / 127
        x = np.round(x / np.where(scales, scales, 1)) * scales
    product = x @ rounded.dequantize(torch.float64).numpy().T
    return torch.from_numpy(product if bias is None else product + bias.double().numpy())


def check_layers(module, names=tuple(SCHEMES), dtypes=(torch.float32, torch.bfloat16), rows=(0, 1, 4, 5, 33)):
    for name, dtype, keeps_plain in product(names, dtypes, (True, False)):
        rounded = quantize(random_weight(), SCHEMES[name])
        generator = torch.Generator().manual_seed(1)
        bias = torch.randn(OUTPUTS, generator=generator).to(dtype) if keeps_plain else None
        layer = module.make_quantized_linear(rounded, bias, dtype, keeps_plain)
        for num_rows in rows:
            x = torch.randn(num_rows, INPUTS, generator=generator).to(dtype)
            expected = reference(x, rounded, bias)
            got = layer(x)
            assert (got.dtype, got.shape) == (dtype, expected.shape), name
            if num_rows:
                # float32: another order of sums. bf16: 8 bits of each weight and of the result.
                tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype] * float(expected.abs().max())
                error = float((got.double() - expected).abs().max())
                assert error <= tolerance, f"{name}, {dtype}, {num_rows} rows: off by {error:.2e}"


@pytest.mark.parametrize("name", SCHEMES)
def test_layers_equal_dequantising_and_multiplying(name):
    check_layers(linear, [name])


@pytest.mark.skipif(not linear._has_int4_operator(), reason="not run here: torch has no int4 operator for this CPU")
def test_int4_takes_a_quarter_of_bf16_and_is_there_twice_where_there_is_room():
    rounded = quantize(random_weight(), SCHEMES["int4"])
    lean = make_quantized_linear(rounded, None, torch.bfloat16, keeps_plain=False)
    quick = make_quantized_linear(rounded, None, torch.bfloat16, keeps_plain=True)
    in_4_bits = SCHEMES["int4"].num_bytes(OUTPUTS, INPUTS)
    assert weight_memory_bytes(lean) == in_4_bits
    assert weight_memory_bytes(quick) == in_4_bits + weight_memory_bytes(quick.plain)
    x = torch.randn(9, INPUTS, dtype=torch.bfloat16)
    assert torch.equal(quick(x), quick.plain(x))
    assert torch.equal(quick(x[:4]), lean(x[:4]))


def test_a_layer_whose_inputs_are_in_another_order():
    rounded = quantize(random_weight(), SCHEMES["int4"])
    shuffled = replace(rounded, input_order=torch.randperm(INPUTS))
    x = torch.randn(3, INPUTS)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        for keeps_plain in (True, False):
            layer = make_quantized_linear(shuffled, None, dtype, keeps_plain)
            expected = x @ shuffled.dequantize().T
            assert torch.allclose(layer(x.to(dtype)).float(), expected, atol=tolerance)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_stored_layer_dequantises_in_the_call(name):
    """What other devices than a CPU get."""
    rounded = quantize(random_weight(), SCHEMES[name])
    layer, x, bias = PackedLinear.from_weight(rounded, torch.ones(OUTPUTS)), torch.randn(3, INPUTS), torch.ones(OUTPUTS)
    assert torch.allclose(layer(x), x @ rounded.dequantize().T + bias, atol=1e-4)
    assert layer.stored.codes.nbytes == rounded.codes.nbytes // (2 if rounded.bits == 4 else 1)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "int8_dynamic"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_kernel_layer_multiplies_as_stored(name, shuffled):
    """What a GPU gets, with kernels as they run here."""
    rounded = quantize(random_weight(), SCHEMES[name])
    if shuffled:
        rounded = replace(rounded, activations=None, input_order=torch.randperm(INPUTS))
    layer, x, bias = KernelLinear.from_weight(rounded, torch.ones(OUTPUTS)), torch.randn(3, INPUTS), torch.ones(OUTPUTS)
    want, scales = x, x.abs().amax(1, keepdim=True) / 448
    if name == "fp8":  # activations in e4m3 too, which keeps 4 bits of a number
        want = (x / scales).to(torch.float8_e4m3fn).float() * scales
    assert torch.allclose(layer(x), want @ rounded.dequantize().T + bias, atol=1e-3)
    assert weight_memory_bytes((layer.codes, layer.scales, layer.minima)) < 0.3 * 4 * OUTPUTS * INPUTS


def test_what_has_no_kernel():
    int8 = quantize(random_weight(), SCHEMES["int8"])
    zero_points = QuantizedWeight(int8.codes, int8.scales, torch.zeros_like(int8.scales))
    in_groups = QuantizedWeight(int8.codes, int8.scales.expand(-1, 4))
    odd_groups = QuantizedWeight(int8.codes // 16, int8.scales.expand(-1, 8), None, 4)
    six_bits = QuantizedWeight(int8.codes // 4, int8.scales, None, 6)
    dynamic = quantize(random_weight(), SCHEMES["int8_dynamic"])
    for weight_ in (zero_points, in_groups, odd_groups, six_bits, dynamic):
        assert kernel_for(weight_) is None
        with pytest.raises(ValueError, match="no kernel multiplies"):
            KernelLinear.from_weight(weight_, None)


def test_int8_activations_do_not_depend_on_the_rows_beside_them():
    layer = make_quantized_linear(quantize(random_weight(), SCHEMES["int8_dynamic"]), None, torch.float32)
    x = torch.randn(40, INPUTS)
    whole = layer(x)
    assert all(torch.equal(layer(x[row : row + 1])[0], whole[row]) for row in range(40))


def test_a_row_of_zeros_and_one_that_is_not_finite():
    layer = make_quantized_linear(quantize(random_weight(), SCHEMES["int8_dynamic"]), None, torch.float32)
    x = torch.zeros(3, INPUTS)
    x[1, 5], x[2, 7] = torch.nan, torch.inf
    got = layer(x)
    assert bool((got[0] == 0).all())
    assert not bool(got[1:].isfinite().any())


def test_a_cpu_without_bf16_multiplies_in_float32(monkeypatch):
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype == torch.float32)
    rounded = quantize(random_weight(), SCHEMES["int8"])
    layer = make_quantized_linear(rounded, torch.ones(OUTPUTS, dtype=torch.bfloat16), torch.bfloat16)
    x = torch.randn(3, INPUTS, dtype=torch.bfloat16)
    expected = x.float() @ rounded.dequantize().T + 1
    assert torch.allclose(layer(x).float(), expected, atol=2e-2 * float(expected.abs().max()))
    assert weight_memory_bytes(layer.layer.weight) == 4 * OUTPUTS * INPUTS


ROUNDING, LAYERS, STORED = (f"twophase_features.quantization.{name}" for name in ("rounding", "linear", "weight"))
MUTANTS = [
    (check_rounding, Mutant("rounds down", ROUNDING, "codes.round_().to(torch.int8)", "codes.floor_().to(torch.int8)")),
    (check_rounding, Mutant("the smallest value is at code 1", ROUNDING, "(lowest + middle)", "(lowest - scales + middle)")),
    (check_rounding, Mutant("scales keep 24 bits", ROUNDING, "scales = exact.bfloat16().float()", "scales = exact.clone()")),
    (check_slices, Mutant("scales of other columns", STORED, "start // self.group_size, stop", "0, stop")),
    (check_slices, Mutant("halves swapped", STORED, "pairs[..., 0] | pairs[..., 1] << 4", "pairs[..., 1] | pairs[..., 0] << 4")),
    (check_slices, Mutant("signs are lost", STORED, "codes > 7", "codes > 8")),
    (check_layers, Mutant("a middle at code 7", LAYERS, "weight.minima + 8 * weight.scales", "weight.minima + 7 * weight.scales")),
    (check_layers, Mutant("the bias is forgotten", LAYERS, "return product if self.bias is None else", "return product if True else")),
    (check_layers, Mutant("activations round down", LAYERS, "(rows / scales).round_()", "(rows / scales).floor_()")),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("check", "mutant"), MUTANTS, ids=lambda value: getattr(value, "name", ""))
def test_mutant(check, mutant):
    KillTable.record(mutant, check)
