"""What a plan's file may say; what is wrong in it is named."""

import pytest

from tests.model.tiny import make_folder
from tests.quantization.writers import say
from tests.tools.capacity.plans import plan, text
from twophase.core.errors import ConfigError
from twophase_tools.capacity.config import EXAMPLE, config_of, parse_config, read_config
from twophase_tools.simulate.cost_model import Assumptions

MISTAKES = [
    ({"max_num_seq": 8}, "unknown key max_num_seq"),
    ({"workload": "{rates: 1, rate: 1, prompt_tokens: 9, output_tokens: 9}"}, "unknown key workload.rates"),
    ({"model": None}, "model is missing"),
    ({"workload": "{rate: 1, prompt_tokens: 1}"}, "workload.output_tokens is missing"),
    ({"workload": "fast"}, "workload must be lines of `key: value`, got 'fast'"),
    ({"slo": "{}"}, "limits ttft_s, tpot_s or both"),
    ({"max_num_seqs": "many"}, "max_num_seqs must be a whole number >= 1 and <= 1000000000, got 'many'"),
    ({"max_num_seqs": 64.5}, "got 64.5"),
    ({"max_num_seqs": "9" * 5000}, "not valid YAML"),
    ({"max_num_seqs": "9" * 4000}, "whole number"),
    ({"max_num_seqs": "true"}, "whole number"),
    ({"model": 2026}, "model must be text"),
    ({"max_model_len": 1}, "max_model_len must be a whole number >= 2"),
    ({"block_size": 24}, "power of two"),
    ({"workload": "{rate: 0, prompt_tokens: 9, output_tokens: 9}"}, "workload.rate must be a number in [1e-12, 1e9]"),
    ({"gpu_memory_utilization": 90}, "in [1e-12, 1], got 90"),
    ({"assumptions": "{compute_efficiency: 1.5}"}, "compute_efficiency must be a share"),
    ({"assumptions": "{compute_efficiency: 1e-300}"}, "assumptions.compute_efficiency must be a share of a peak, in [1e-12, 1]"),
    ({"workspace": "1 gb"}, "workspace must be a size such as 80 GB (powers of ten) or 74.5 GiB (powers of two)"),
    ({"dtype": "bf16"}, "dtype must be one of bfloat16, float16, float32, got 'bf16'"),
    ({"hardware": "h1000"}, "hardware must be one of a100, h100, h200, mi300x, got 'h1000'"),
    ({"hardware": "{memory: 80 GB, flops_per_s: 1e15, bytes_per_s: 0}"}, "hardware.bytes_per_s must be a number in [1,"),
    ({"hardware": "{memory: 80 GB, flops_per_s: 1e15, bytes_per_s: 1e12}", "tensor_parallel_size": 2}, "needs link_bytes_per_s"),
    ({"model": "lama-3-8b"}, "model must be one of smollm2-135m, llama-3-8b, llama-3-70b, or a folder"),
    ({"model": "."}, "model cannot be read"),
    ({"max_num_batched_tokens": 100}, "must be at least max_num_seqs, so that every running sequence can decode"),
    ({"max_model_len": 1249}, "a mean request of 1,250 tokens is refused by max_model_len 1,249"),
    ({"model": "smollm2-135m", "quantization": "int4_g128"}, "rounds in groups of 128, which do not divide"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "complaint"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_named(changes, complaint):
    with pytest.raises(ConfigError) as caught:
        parse_config(text(**changes))
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "source", ["model: [1\n", "a: b: c\n", "a: 1\n---\nb: 2\n", "a: \x00", "a: *b", "a: " + "[" * 3000]
)
def test_what_is_no_yaml(source):
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_config(source)


@pytest.mark.parametrize("source", ["", "- model\n", "model:llama-3-8b\n"])
def test_what_has_no_keys(source):
    with pytest.raises(ConfigError, match=r"a plan must be lines of `key: value`"):
        parse_config(source)


def test_the_example_and_its_defaults():
    """What is commented out in the example are the defaults."""
    config = read_config(EXAMPLE)
    assert (config.model, config.max_num_seqs, config.chunk_size, config.block_size) == ("llama-3-8b", 128, None, 16)
    assert config.assumptions == Assumptions()
    plan, _, assumed = EXAMPLE.read_text(encoding="utf-8").partition("# assumptions:")
    shown = "\n".join(line.removeprefix("# ") for line in f"# assumptions:{assumed}".splitlines())
    assert parse_config(plan + shown).assumptions == Assumptions()


def test_json_and_a_mapping_are_plans_too():
    values = {"model": "llama-3-8b", "hardware": "h100", "max_model_len": 4096, "max_num_seqs": 8}
    values |= {"workload": {"rate": 0.5, "prompt_tokens": 10, "output_tokens": 5}}
    found = config_of(values)
    source = '{"model": "llama-3-8b", "hardware": "h100", "max_model_len": 4096, "max_num_seqs": 8, "workload": '
    assert parse_config(source + '{"rate": 0.5, "prompt_tokens": 10, "output_tokens": 5}}') == found
    assert (found.workload.rate, found.max_num_seqs) == (0.5, 8)


def test_a_folder_is_looked_for_from_the_file_on(tiny_folder):
    changes = {"max_model_len": 64, "workload": "{rate: 1, prompt_tokens: 8, output_tokens: 8}"}
    shape = parse_config(text(model=tiny_folder.name, **changes), folder=tiny_folder.parent).shape
    assert (shape.hidden_size, shape.num_layers, shape.num_kv_heads) == (48, 2, 2)
    with pytest.raises(ConfigError, match="must not exceed the model's"):
        plan(model=tiny_folder)


def test_weights_that_are_quantised_already(tmp_path):
    folder, _ = make_folder("llama", tmp_path, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    say(folder, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True})
    changes = {"max_model_len": 64, "workload": "{rate: 1, prompt_tokens: 8, output_tokens: 8}"}
    with pytest.raises(ConfigError, match=r"rounds plain weights, but the weights in .* are already quantised"):
        plan(model=folder, quantization="int4", **changes)
    assert plan(model=folder, **changes).config.shape.layer_value_bytes == 0.75


def check_units(units):
    assert units.bytes_of("80 GB") == units.bytes_of("80000000000") == 80 * 10**9
    assert units.bytes_of("80 GiB") == 80 * 2**30
    assert units.bytes_of("0.3 kB") == 300
    assert units.in_both(16 * 2**30) == "17.18 GB (16.00 GiB)"
