"""Layers that multiply few rows by a kernel: the same results as torch's layers, from the same memory."""

import gc
from dataclasses import replace
from types import ModuleType
from unittest.mock import Mock, patch

import pytest
import torch

import triton_on_cpu
from ptx_emulator import CompilingProcess
from tests.engine.engines import prompt_of
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant, is_killed
from tests.quantization.weight_memory import weight_memory_bytes
from twophase import LLM, assembly
from twophase.model import machine
from twophase.model.linear import TorchLinear, can_pack, make_linear
from twophase_features.quantization import few_rows
from twophase_features.quantization.few_rows import FewRows
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES
from twophase_features.triton import linear

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: kernels for CPUs")

PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 9, 17))]


@pytest.fixture(scope="module")
def compiling():
    with CompilingProcess() as process:
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder("llama", tmp_path_factory.mktemp("llama"))[0]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layers_of(weight, bias=None):
    """Torch's layers of a weight: as it lies, and packed where this CPU can."""
    yield TorchLinear(weight, bias, is_packed=False)
    if can_pack(weight.dtype):
        yield make_linear(weight, bias)


def check_layer(module: ModuleType) -> None:
    """Products equal torch's for any number of rows, and up to `max_rows` they are the kernel's."""
    weight, bias = random(70, 33), random(70, seed=1)
    for layer in layers_of(weight, bias):
        few = module.few_rows_of_torch(layer, 2)
        kernel = Mock(return_value=random(1, 70))
        with patch.object(few_rows, "launch_packed_linear", kernel):
            for num_rows in (1, 2, 3):
                few(random(num_rows, 33))
        assert [len(call.args[0]) for call in kernel.call_args_list] == [1, 2]
        for num_rows in (0, 1, 2, 3):
            x = random(num_rows, 33)
            torch.testing.assert_close(few(x), layer(x), rtol=1e-5, atol=1e-5)
        for wrong in (random(2, 34), random(2, 33).double(), random(33, 2).T):
            with pytest.raises(ValueError, match=r"x must be \[T, 33\] torch.float32 with contiguous rows, got"):
                few(wrong)


def check_memory(module: ModuleType) -> None:
    """The words are oneDNN's memory where it has our layout, and live as long as they are used."""
    for layer in layers_of(random(70, 33)):
        few = module.few_rows_of_torch(layer, 1)
        words = few.words
        shares_memory = words.data_ptr() == (torch.ops.mkldnn.data_ptr(layer.weight) if layer.is_packed else 0)
        assert shares_memory == (layer.is_packed and module.memory_of(layer.weight, words) is not None)
        expected = 70 * 33 * 4 if shares_memory else 70 * 33 * 4 + words.numel() * 4
        assert weight_memory_bytes(few) == expected, "shared memory counts once"
        before = words.clone()
        del few, layer
        gc.collect()
        _ = [torch.full((1000,), 7.0) for _ in range(5000)]  # would take the memory, were it free
        assert torch.equal(words, before)


def check_another_layout(module: ModuleType) -> None:
    """Memory that differs from the words in one bit, or in its size, is not taken for them."""
    if not can_pack(torch.float32):
        return
    layer = make_linear(random(64, 32))
    words = module.pack_weight(random(64, 32))
    found = module.memory_of(layer.weight, words)
    if found is not None:  # a processor with this layout
        assert found.data_ptr() == torch.ops.mkldnn.data_ptr(layer.weight)
        words[0, 31, 63] += 1
        assert module.memory_of(layer.weight, words) is None
    assert module.memory_of(layer.weight, words[:, :16].contiguous()) is None
    with patch.object(module, "memory_of", lambda packed, words: None):
        few = module.few_rows_of_torch(layer, 4)
    assert few.words.data_ptr() != torch.ops.mkldnn.data_ptr(layer.weight)
    torch.testing.assert_close(few(random(3, 32)), layer(random(3, 32)), rtol=1e-5, atol=1e-5)


def check_head(module: ModuleType, folder) -> None:
    """The head's products of few rows are float32, not rounded to bfloat16 before they are widened."""
    weights = load_model(folder, dtype=torch.bfloat16).weights
    head = module.with_kernels(weights, max_rows=1).lm_head
    x = random(1, head.shape[1]).bfloat16()
    got, dense = head(x), weights.lm_head.weight
    dense = dense.to_dense() if weights.lm_head.is_packed else dense
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, x.float() @ dense.float().T, rtol=1e-5, atol=1e-5)


def check_weights(module: ModuleType, folder) -> None:
    """All layers are replaced; the experts and few bits are not."""
    weights = load_model(folder).weights
    new = module.with_kernels(weights, max_rows=3)
    changed = [layer for each in new.layers for layer in (each.qkv, each.o, each.mlp.gate_up, each.mlp.down)]
    assert all(isinstance(layer, FewRows) and layer.max_rows == 3 for layer in (*changed, new.lm_head))
    assert new.layers[1].o.many is weights.layers[1].o
    assert new.embed is weights.embed
    assert new.layers[0].input_norm is weights.layers[0].input_norm
    assert module.with_kernels(weights).layers[0].qkv.max_rows == module.MAX_ROWS
    few_bits = lambda x: x  # noqa: E731
    mixed = replace(weights, lm_head=few_bits)
    assert module.with_kernels(mixed, max_rows=3).lm_head is few_bits
    assert module.with_kernels(replace(weights, dtype=torch.float16), max_rows=3).lm_head is weights.lm_head


def quantized(scheme, num_outputs=70, num_inputs=96, order=None):
    weight = quantize(random(num_outputs, num_inputs), SCHEMES[scheme])
    return weight if order is None else replace(weight, input_order=torch.randperm(num_inputs))


def check_codes(module: ModuleType) -> None:
    assert not module.has_few_rows_kernel(quantized("int8"), torch.float32), "kernels for the CPU are not named"
    with patch.object(module, "prefers_kernels", lambda device: True):
        check_code_layers(module)


def check_code_layers(module: ModuleType) -> None:
    """Layers of few bits: the product with the weight's values, up to `max_rows` rows, then that of the torch layer."""
    for scheme in ("int8", "int4", "int4_sym"):
        for order in (None, "permuted"):
            for bias in (None, random(70, seed=1)):
                weight = quantized(scheme, order=order)
                assert module.has_few_rows_kernel(weight, torch.float32)
                layer = module.few_rows_of_codes(weight, bias, torch.float32, lambda x: x[:, :1])
                want = torch.nn.functional.linear(x := random(2, 96), weight.dequantize(), bias)
                torch.testing.assert_close(layer.few(x), want, rtol=1e-4, atol=1e-4)
        assert torch.equal(layer(x), x[:, :1]), "no model has it yet"
        assert [replace(layer, max_rows=2)(random(rows, 96)).shape[1] for rows in (1, 2, 3)] == [70, 70, 1]
        assert replace(layer, dtype=torch.bfloat16).few(x).dtype == torch.bfloat16
        for wrong in (x.double(), random(2, 95), random(96, 2).T):
            with pytest.raises(ValueError, match=r"x must be \[T, 96\] torch.float32"):
                layer.few(wrong)
    for odd in (quantized("int8_dynamic"), quantized("int8", num_inputs=90), quantized("fp8")):
        assert not module.has_few_rows_kernel(odd, torch.float32)
    assert not module.has_few_rows_kernel(quantized("int8"), torch.float16)


OPTIONS = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 16, "skip_tokenizer_init": True}


def module_of(check):
    return few_rows if check is check_codes else linear


def in_mode_cpu(check, *arguments):
    triton_on_cpu.install()
    check(module_of(check), *arguments)


CHECKS = [check_layer, check_memory, check_another_layout, check_codes]
OF_FOLDER = [check_weights, check_head]


@pytest.mark.parametrize("check", CHECKS)
def test_layers(compiling, check):
    compiling.call(in_mode_cpu, check)


@pytest.mark.parametrize("check", OF_FOLDER)
def test_models(compiling, check, folder):
    compiling.call(in_mode_cpu, check, folder)


@pytest.mark.parametrize("prefers", [True, False])
def test_auto_uses_the_kernel_where_it_takes_triton(prefers, folder):
    wrapped = patch.object(linear, "with_kernels", wraps=linear.with_kernels)
    with patch.object(machine, "prefers_kernels", lambda device: prefers), wrapped as used:
        LLM(str(folder), attention_backend="auto", **OPTIONS)
    assert used.called == prefers


def test_interpreted_kernels_are_not_used(folder):
    weights = load_model(folder).weights
    with patch.object(linear, "mode", lambda: "interpreted"):
        assert linear.with_kernels(weights) is weights
    assert assembly.feature("triton.linear") is linear


MUTANTS = [
    ("bias left out", check_layer, "shape, linear.bias, weight.dtype", "shape, None, weight.dtype"),
    ("memory not kept", check_memory, "    buffer.owner = packed", "    _ = packed"),
    ("layout not compared", check_another_layout, "return found if torch.equal(", "return found if True or torch.equal("),
    ("size not compared", check_another_layout, "if num_bytes != words.numel() * words.itemsize", "if num_bytes < 0"),
    ("shared is copied", check_memory, "words if shared is None else shared,", "words,"),
    ("the head is rounded", check_head, "dtype=torch.float32))", "dtype=None))"),
    ("any dtype", check_weights, " or weights.dtype not in WORD_DTYPES", ""),
    ("mlp left out", check_weights, "gate_up=change(mlp.gate_up), ", ""),
    ("one row too many", check_codes, "x.shape[0] <= self.max_rows", "x.shape[0] <= self.max_rows + 1"),
    ("one row too few", check_codes, "x.shape[0] <= self.max_rows", "x.shape[0] < self.max_rows"),
    ("wrong columns", check_codes, "x.shape[1] != self.shape[1] or ", ""),
    ("signed codes as they are", check_codes, "codes, minima = codes + 8, -8 * weight.scales", "minima = -8 * weight.scales"),
    ("columns in the codes' order", check_codes, "        if self.input_order is not None:", "        if False:"),
    ("bias of codes left out", check_codes, "self.shape[0], self.bias, self.scales", "self.shape[0], None, self.scales"),
    ("rounded activations", check_codes, "weight.activations is not None or ", ""),
]  # fmt: skip


def noticed(mutant, check, *arguments):
    triton_on_cpu.install()
    return is_killed(mutant, lambda module: check(module, *arguments))


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "check", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(compiling, name, check, old, new, folder):
    mutant = Mutant(name, module_of(check).__name__, old, new)
    mutant.source()
    if KillTable.only_planted:
        return
    try:
        how = compiling.call(noticed, mutant, check, *([folder] if check in OF_FOLDER else []))
    except RuntimeError as crashed:  # memory that is another's by now
        how = str(crashed)
    KillTable.rows.append((mutant.module, name, how))
    assert how is not None, f"mutant survived: {name}"
