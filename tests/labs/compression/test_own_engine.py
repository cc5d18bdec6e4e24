"""The engine with a learner's matrices: where it runs, what is counted, and that nothing is left of one variant in the
next."""

import pytest
import torch

from twophase import SamplingParams
from twophase_labs.compression import own_engine, parts, quality
from twophase_labs.compression.changed_model import matrix
from twophase_labs.compression.own_engine import OwnModel, Rounded
from twophase_labs.compression.quality import megabytes, stored_bytes
from twophase_labs.compression.step_bytes import open_engine

PLACE = (15, "down")


def to_nearest(weight, bits, group_size):
    groups = weight.unflatten(1, (-1, group_size))
    minima = groups.amin(-1)
    scales = (groups.amax(-1) - minima) / (2**bits - 1)
    codes = ((groups - minima[..., None]) / scales[..., None]).round()
    return codes.flatten(1).to(torch.uint8), scales, minima


@pytest.fixture(scope="module")
def rounded() -> Rounded:
    return own_engine.rounded(to_nearest, PLACE, 4, 64)


def test_bytes_are_those_of_codes_scales_minima_and_factors(rounded):
    assert stored_bytes(rounded) == 576 * 1536 / 2 + 2 * 2 * 576 * 24
    with_factors = own_engine.rounded(to_nearest, PLACE, 8, 64, torch.ones(1536))
    assert stored_bytes(with_factors) == 576 * 1536 + 2 * 2 * 576 * 24 + 2 * 1536
    plain = megabytes(OwnModel({}))
    saved = (2 * 576 * 1536 - stored_bytes(rounded)) / 1e6
    assert megabytes(OwnModel({PLACE: rounded})) == pytest.approx(plain - saved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_are_divided_out_again(dtype):
    generator = torch.Generator().manual_seed(0)
    factors = torch.rand(1536, generator=generator) + 0.5
    own = own_engine.rounded(to_nearest, PLACE, 8, 64, factors)
    x = torch.randn(3, 1536, generator=generator)
    wanted = x @ matrix(PLACE).T
    got = own.layer(dtype)(x.to(dtype)).float()
    assert float((got - wanted).norm() / wanted.norm()) < 0.02


def test_more_bits_move_predictions_less_and_none_move_nothing(rounded):
    eight = OwnModel({PLACE: own_engine.rounded(to_nearest, PLACE, 8, 64)})
    nothing, less, more = (quality.drift(own, 130).kl.mean for own in (OwnModel({}), eight, OwnModel({PLACE: rounded})))
    assert nothing == 0 < less < more


def test_what_it_is_compared_with_is_the_plain_model_also_the_first_time(rounded):
    quality.logits_before.cache_clear()
    assert quality.drift(OwnModel({PLACE: rounded}), 130).kl.mean > 0


def test_what_a_variant_wrote_is_its_own(rounded, monkeypatch):
    monkeypatch.setattr(quality, "NUM_NEW", 3)
    speeds, wrote = quality.tokens_per_s({"as it is": None, "one matrix": OwnModel({PLACE: rounded})})
    assert all(speed > 0 for speed in speeds.values())
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    (output,) = open_engine("float32").generate([quality.PROMPT], params, use_tqdm=False)
    assert wrote["as it is"] == output.outputs[0].text


def test_a_variant_finds_no_keys_and_values_of_another(rounded):
    prompt = {"prompt_token_ids": list(quality.text_ids(64))}
    params = SamplingParams(temperature=0, max_tokens=1)
    for own in (OwnModel({PLACE: rounded}), OwnModel({})):
        with own_engine.running(own) as llm:
            (output,) = llm.generate([prompt], params, use_tqdm=False)
            assert output.metrics.num_cached_tokens == 0


def test_a_mixture_takes_each_part_in_its_format():
    four, eight = (own_engine.in_groups(to_nearest, bits) for bits in (4, 8))
    formats = parts.Formats(four, eight, dict.fromkeys(parts.PARTS, 0.1))
    mixed = formats.mixed(in_eight=["qkv late"]).matrices
    assert {place for place, each in mixed.items() if each.weight.bits == 8} == {(n, "qkv") for n in range(15, 30)}
    assert mixed.keys() == four.matrices.keys()
    saved = 30 / 2 * 960 * 576 / 2 / 1e6  # half a byte of each code of 15 layers' queries, keys and values
    assert formats.worth("qkv late") == pytest.approx(0.1 / saved)
    assert sum(formats.num_bytes(part)[0] for part in parts.PARTS) / 1e6 == pytest.approx(megabytes(four))
