"""The compressed-tensors files: what vLLM reads back is the weights, as near as the bits allow."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.model.tiny import make_folder
from twophase_tools.bench.peers import packed_weights

# Half a step of the largest weight, and the scale's rounding to bf16 (2**-9) times the number of steps.
ERRORS = {8: 0.5 / 127 + 2**-8, 4: 0.5 / 7 + 2**-8}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    make_folder("llama", folder, hidden_size=64, intermediate_size=96, num_attention_heads=8)
    return folder


def unpack(tensors, name):
    """The weight as the format's specification says, element by element."""
    scales = tensors[f"{name}_scale"].double()
    if name in tensors:
        return tensors[name].double() * scales
    rows, columns = tensors[f"{name}_shape"].tolist()
    weight = torch.empty(rows, columns, dtype=torch.float64)
    for row in range(rows):
        for column in range(columns):
            word = int(tensors[f"{name}_packed"][row, column // 8]) & 0xFFFFFFFF
            code = (word >> (4 * (column % 8))) & 15
            weight[row, column] = (code - 8) * scales[row, column // packed_weights.GROUP_SIZE]
    return weight


@pytest.mark.parametrize("bits", [8, 4])
def test_linear_layers_are_rounded_and_nothing_else(plain, tmp_path, bits):
    folder = packed_weights.write(plain, tmp_path / "packed", bits)
    before, after = load_file(plain / "model.safetensors"), load_file(folder / "model.safetensors")
    linear = {name for name in before if "_proj" in name}
    assert len(linear) == 7 * 2
    for name, weight in before.items():
        if name not in linear:
            assert torch.equal(after[name], weight.bfloat16()), name
            continue
        group = weight.shape[1] if bits == 8 else packed_weights.GROUP_SIZE
        largest = weight.abs().unflatten(1, (-1, group)).amax(-1, keepdim=True)
        error = (unpack(after, name) - weight).abs().unflatten(1, (-1, group)) / largest
        assert error.max() <= ERRORS[bits], name
    assert not linear & set(after) or bits == 8


@pytest.mark.parametrize(("bits", "form"), [(8, "int-quantized"), (4, "pack-quantized")])
def test_the_configuration_says_what_was_done(plain, tmp_path, bits, form):
    folder = packed_weights.write(plain, tmp_path / "packed", bits)
    config, plain_config = (json.loads((each / "config.json").read_text()) for each in (folder, plain))
    said = config.pop("quantization_config")
    assert config == plain_config
    assert (said["quant_method"], said["format"]) == ("compressed-tensors", form)
    group = said["config_groups"]["group_0"]
    assert group["weights"]["num_bits"] == bits
    assert (group["input_activations"] is not None) == (bits == 8)


def test_zero_weights_stay_zero():
    assert packed_weights._eight_bits("w", torch.zeros(2, 8))["w"].count_nonzero() == 0
