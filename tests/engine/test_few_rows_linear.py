"""Layers that multiply few rows by a kernel: the same results as torch's layers, from the same memory."""

import gc
from dataclasses import replace
from types import ModuleType
from unittest.mock import Mock, patch

import pytest
import torch

import triton_on_cpu
from ptx_emulator import CompilingProcess
from tests.engine.engines import GREEDY, make_engine, prompt_of, run, tokens_of
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant, is_killed
from twophase import LLM, assembly
from twophase.model.linear import TorchLinear, can_pack, make_linear
from twophase.model.llama import LlamaModel
from twophase_features.quantization import few_rows
from twophase_features.quantization.few_rows import FewRows
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES
from twophase_features.triton import linear
from twophase_tools.bench.quality_cost import weight_memory_bytes

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
        for num_rows in (1, 2, 3):
            replace(few, launch=kernel)(random(num_rows, 33))
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


def measured(module: ModuleType, few_s, many_s, noise=0.0) -> int:
    """`max_rows` where the products of 1, 2, 4, 8 rows take such times, and all rounds but one more: `noise`, ours twice that."""
    layer = module.few_rows_of_torch(TorchLinear(random(8, 4), None, is_packed=False))
    rounds = []

    def recorded(products, x):
        assert torch.get_num_threads() == 1
        assert len(products) == 2, "all layers"
        return getattr(products[0], "__name__", "") == "few", len(x)

    def seconds(replay):
        is_few, num_rows = replay
        rounds.append(num_rows)
        quiet = rounds.count(num_rows) in (2, 5)  # torch's turn is the second of a round
        times = few_s if is_few else many_s
        return times[module.ROWS.index(num_rows)] + (0 if quiet else noise * (1 + is_few))

    with patch.object(module, "_seconds", seconds), patch.object(module, "_recorded", recorded):
        return module.measure_max_rows([layer, layer])


def check_measurement(module: ModuleType) -> None:
    equal = (1.0, 1.0, 1.0, 1.0, 1.0)
    assert measured(module, (0.9, 0.9, 1.1, 0.9, 0.9), equal) == 2, "the first loss ends it"
    assert measured(module, (0.9, 0.9, 0.9, 0.9, 0.9), equal) == 16
    assert measured(module, (1.02, 1.04, 0.9, 0.9, 0.9), equal) == 1, "ours, if it is about as fast"
    torch.set_num_threads(2)
    assert measured(module, (1.04, 1.0, 1.0, 1.0, 1.0), equal) == 0
    assert torch.get_num_threads() == 2
    assert measured(module, (0.9, 1.1, 1.1, 1.1, 1.1), equal, noise=5.0) == 1, "the least time counts"


def check_a_measurement(module: ModuleType) -> None:
    """On this machine's clock: any answer is right, and it is one of those measured. Both ways really multiply."""
    layer = module.few_rows_of_torch(make_linear(random(64, 32)))
    with patch.object(module, "ROWS", (1,)):
        assert module.measure_max_rows([layer]) in (0, 1)
    for products in ([layer.few], [layer.many]):
        x, found = random(2, 32), []
        replay = module._recorded([lambda x, each=products[0], keep=found.append: keep(each(x))], x)
        want = layer.many(x.mul_(2))
        replay()
        torch.testing.assert_close(found[0], want, rtol=1e-5, atol=1e-5)


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
    """All layers are replaced, or those of a shape for which the kernel is faster; the experts and few bits are not."""
    weights = load_model(folder).weights
    new = module.with_kernels(weights, max_rows=3)
    changed = [layer for each in new.layers for layer in (each.qkv, each.o, each.mlp.gate_up, each.mlp.down)]
    assert all(isinstance(layer, FewRows) and layer.max_rows == 3 for layer in (*changed, new.lm_head))
    assert new.layers[1].o.many is weights.layers[1].o
    assert new.embed is weights.embed
    assert new.layers[0].input_norm is weights.layers[0].input_norm
    shape = tuple(weights.lm_head.weight.shape)
    with patch.object(module, "measure_max_rows", lambda layers: 4 if layers[0].shape[0] == shape[0] else 0):
        some = module.with_kernels(weights)
    assert (some.lm_head.max_rows, some.layers[0].qkv) == (4, weights.layers[0].qkv)
    few_bits = lambda x: x  # noqa: E731
    mixed = replace(weights, lm_head=few_bits)
    assert module.with_kernels(mixed, max_rows=3).lm_head is few_bits
    assert module.with_kernels(replace(weights, dtype=torch.float16), max_rows=3).lm_head is weights.lm_head


def quantized(scheme, num_outputs=70, num_inputs=96, order=None):
    weight = quantize(random(num_outputs, num_inputs), SCHEMES[scheme])
    return weight if order is None else replace(weight, input_order=torch.randperm(num_inputs))


def check_codes(module: ModuleType) -> None:
    assert not module.has_few_rows_kernel(quantized("int8"), torch.float32), "kernels for the CPU are not named"
    with patch.object(module, "asks_for_compiled_kernels", lambda: True):
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
        assert torch.equal(layer(x), x[:, :1]), "not measured yet"
        assert [replace(layer, max_rows=2)(random(rows, 96)).shape[1] for rows in (1, 2, 3)] == [70, 70, 1]
        assert replace(layer, dtype=torch.bfloat16).few(x).dtype == torch.bfloat16
        for wrong in (x.double(), random(2, 95), random(96, 2).T):
            with pytest.raises(ValueError, match=r"x must be \[T, 96\] torch.float32"):
                layer.few(wrong)
    for odd in (quantized("int8_dynamic"), quantized("int8", num_inputs=90), quantized("fp8")):
        assert not module.has_few_rows_kernel(odd, torch.float32)
    assert not module.has_few_rows_kernel(quantized("int8"), torch.float16)


@patch.object(few_rows, "asks_for_compiled_kernels", lambda: True)
def check_codes_of_models(folder) -> None:
    """A model of few bits has the kernel where it is faster, is as it was elsewhere, and says the same either way."""
    few = []
    for limit in (2, 0):
        with patch.object(linear, "measure_max_rows", lambda layers, limit=limit: limit):
            options = {"dtype": "float32", "num_kv_blocks": 16, "skip_tokenizer_init": True, "quantization": "int8"}
            llm = LLM(str(folder), device="cpu", attention_backend="triton", **options)
        layer = llm.model.weights.layers[0].qkv
        assert isinstance(layer, FewRows) == (limit == 2)
        assert limit == 0 or (layer.max_rows, llm.model.weights.lm_head.dtype) == (2, torch.float32)
        few.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)])
    assert few[0] == few[1]


def check_tokens(module: ModuleType, folder) -> None:
    """Greedy tokens of a model whose products are all the kernel's, in prompts and decodes."""
    model = load_model(folder)
    ours = LlamaModel(model.config, module.with_kernels(model.weights, max_rows=1000), model.backend)
    expected, got = (run(make_engine(each), PROMPTS, GREEDY) for each in (model, ours))
    assert [tokens_of(output) for output in got] == [tokens_of(output) for output in expected]


def check_opening(folder) -> None:
    """`attention_backend='triton'` measures and uses the kernel; the tokens are those of torch's backend."""
    outputs = []
    for backend in ("torch", "triton"):
        options = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 16, "skip_tokenizer_init": True}
        with patch.object(linear, "measure_max_rows", lambda layers: 2):
            llm = LLM(str(folder), attention_backend=backend, **options)
        is_ours = isinstance(llm.model.weights.lm_head, FewRows)
        assert is_ours == (backend == "triton")
        outputs.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)])
    assert outputs[0] == outputs[1]


def module_of(check):
    return few_rows if check is check_codes else linear


def in_mode_cpu(check, *arguments):
    triton_on_cpu.install()
    check(module_of(check), *arguments)


CHECKS = [check_layer, check_memory, check_another_layout, check_measurement, check_a_measurement, check_codes]
OF_FOLDER = [check_weights, check_tokens, check_head]


@pytest.mark.parametrize("check", CHECKS)
def test_layers(compiling, check):
    compiling.call(in_mode_cpu, check)


@pytest.mark.parametrize("check", OF_FOLDER)
def test_models(compiling, check, folder):
    compiling.call(in_mode_cpu, check, folder)


@pytest.mark.full  # compiles the kernels of attention too
def test_the_option(compiling, folder):
    compiling.call(opened, folder)


def opened(folder):
    triton_on_cpu.install()
    check_opening(folder)
    check_codes_of_models(folder)


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
    ("about equal is slower", check_measurement, "TOLERANCE * many_s", "many_s"),
    ("one layer measured", check_measurement, "_recorded(products, x) for", "_recorded(products[:1], x) for"),
    ("a replay multiplies nothing", check_a_measurement, "return recording.replay", "return lambda: None"),
    ("the head is rounded", check_head, "dtype=torch.float32))", "dtype=None))"),
    ("all threads", check_measurement, "    torch.set_num_threads(1)\n", ""),
    ("threads not given back", check_measurement, "torch.set_num_threads(before)", "pass"),
    ("a later win counts", check_measurement, "            break\n", "            continue\n"),
    ("the greatest time", check_measurement, "(min(times) for times", "(max(times) for times"),
    ("torch for ours", check_measurement, "few_s, many_s = (", "many_s, few_s = ("),
    ("any dtype", check_weights, " or weights.dtype not in WORD_DTYPES", ""),
    ("a limit for all", check_weights, "max_rows is None else max_rows", "max_rows is None else 8"),
    ("never the faster one, and used", check_weights, "isinstance(linear, TorchLinear) and limit else", "isinstance(linear, TorchLinear) else"),
    ("mlp left out", check_weights, "gate_up=change(mlp.gate_up), ", ""),
    ("one row too many", check_codes, "x.shape[0] <= self.max_rows", "x.shape[0] <= self.max_rows + 1"),
    ("one row too few", check_codes, "x.shape[0] <= self.max_rows", "x.shape[0] < self.max_rows"),
    ("wrong columns", check_codes, "x.shape[1] != self.shape[1] or ", ""),
    ("signed codes as they are", check_codes, "codes, minima = codes + 8, -8 * weight.scales", "minima = -8 * weight.scales"),
    ("columns in the codes' order", check_codes, "        if self.input_order is not None:", "        if False:"),
    ("bias of codes left out", check_codes, "self.shape[0], self.bias, self.dtype", "self.shape[0], None, self.dtype"),
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
