"""The gate lets int8 and fp8 caches through on the real model, and stops caches and weights that are spoilt on purpose."""

import json
from dataclasses import replace

import jsonschema
import pytest
import torch

import twophase.attention.torch_backend as torch_backend
from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from tests.tools.bench.quality_weights import with_rounded_weights
from twophase.core.errors import ConfigError
from twophase_kernels.quant import quantise_reference
from twophase_tools.bench import quality, quality_tasks
from twophase_tools.bench.perplexity import more_prose, prose
from twophase_tools.bench.quality import Variant
from twophase_tools.bench.quality_probes import Outcome

BOUNDS = quality.Bounds()
OBJECT = {"customer": "a", "item": "b", "quantity": 1, "city": "c"}
ANSWERS = {"needles found": (Outcome(True),) * 4, "two-digit sums": (Outcome(False),) * 4}


def three_bits(x, kv_format):
    """Levels -3 .. 3 instead of -127 .. 127."""
    scale = x.abs().amax(-1) / 3
    return (x / scale[..., None]).round().to(torch.int8), scale


def scrambled_scales(x, kv_format):
    """Each row with its neighbour's scale."""
    data, scale = quantise_reference(x, kv_format)
    return data, scale.roll(1)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(OBJECT),
        json.dumps(OBJECT) + " ",
        json.dumps(OBJECT | {"more": 1}),
        json.dumps(OBJECT | {"quantity": "1"}),
        json.dumps(OBJECT | {"quantity": True}),
        json.dumps(OBJECT | {"quantity": 1001}),
        json.dumps(OBJECT | {"city": "x" * 31}),
        json.dumps({"customer": "a"}),
        json.dumps([OBJECT]),
        json.dumps(OBJECT)[:-1],
        "Here it is: " + json.dumps(OBJECT),
        "",
    ],
)
def test_validity_is_that_of_the_schema(text):
    try:
        jsonschema.validate(json.loads(text), quality_tasks.SCHEMA)
        is_valid = True
    except (ValueError, jsonschema.ValidationError):
        is_valid = False
    assert (quality_tasks.parsed(text) is not None) == is_valid


# -- on models


@pytest.fixture(scope="module")
def open_smollm2(smollm2_folder):
    return quality.open_model(str(smollm2_folder), device="cpu", attention_backend="torch")


def failed(report: quality.FormatReport) -> set[str]:
    return {verdict.name for verdict in report.verdicts if verdict.passed is False}


@pytest.fixture(scope="module")
def before(open_smollm2):
    """SmolLM2's own answers to a few of the questions, and the patch under which the others answer as few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality_tasks, "HAY_TOKENS", (400,))
        patch.setattr(quality_tasks, "ORDERS", quality_tasks.ORDERS[:3])
        llm = open_smollm2(Variant())
        token_ids = llm.tokenizer.encode(prose())[:320]
        yield quality.Before(llm, token_ids, quality_tasks.answer(llm))


@pytest.mark.full
def test_the_gate_tells_eight_bits_from_three(open_smollm2, before, monkeypatch):
    right = {name: sum(each.passed for each in outcomes) for name, outcomes in before.answers.items()}
    assert right["needles found"] >= 6
    assert (right["guided JSON valid"], right["free JSON valid"], right["guided JSON fields"]) == (3, 3, 12)
    few = replace(BOUNDS, answers_kept=0.85)  # of eight needles one may be lost
    whole_text = replace(before, token_ids=before.llm.tokenizer.encode(prose()))  # 320 tokens do not decide on fp8
    for kv_format, asked in (("fp8_e4m3", whole_text), ("int8", before)):
        after = open_smollm2(Variant(kv_format))
        report = quality.judge(kv_format, asked, after, few)
        assert not failed(report), "\n".join(report.to_lines())
    assert "one-digit sums" in {verdict.name for verdict in report.verdicts if verdict.passed}
    monkeypatch.setattr(torch_backend, "quantise_reference", three_bits)
    report = quality.judge("three bits", before, after, few)
    assert not report.passed
    everything = {"perplexity", "mean KL divergence", "same top token", "needles found", "free JSON valid"}
    assert failed(report) >= everything | {"guided JSON fields"}, "\n".join(report.to_lines())


def test_the_gate_sees_scales_in_the_wrong_place(open_smollm2, monkeypatch):
    before, after = open_smollm2(Variant()), open_smollm2(Variant("int8"))
    token_ids = before.tokenizer.encode(prose())[:384]
    monkeypatch.setattr(torch_backend, "quantise_reference", scrambled_scales)
    verdicts = list(quality.drift_verdicts(quality.measure_drift(before, after, token_ids), BOUNDS))
    assert [verdict.passed for verdict in verdicts] == [False, False, False]


@pytest.mark.full
def test_the_gate_stops_weights_of_two_bits(open_smollm2, before):
    report = quality.judge("2 bits", before, with_rounded_weights(open_smollm2(Variant()), 2), quality.FOUR_BITS)
    assert failed(report) >= {"perplexity", "mean KL divergence", "same top token"}, "\n".join(report.to_lines())


# -- the command


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory):
    """A random model with heads wide enough for int8, and inputs in groups of 32."""
    folder = tmp_path_factory.mktemp("wide")
    tokenizer = byte_level()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, max_position_embeddings=512, **sizes)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def command(twophase, wide_folder, monkeypatch):
    """`bench quality` on a tiny model that gets every answer right, whatever it is made of."""
    monkeypatch.setattr(quality, "answer", lambda llm: ANSWERS)
    words = ("bench", "quality", "--model", wide_folder, "--device", "cpu", "--tokens", 256)
    return lambda *options: twophase(*words, *options)


LENIENT = ("--max-perplexity-ratio", 10, "--max-kl", 10, "--min-top1-agreement", 0)


def test_the_command_passes(command):
    exit_code, out, err = command(*LENIENT)
    assert exit_code == 0, err
    assert "K/V int8, in float32: the gate passes" in out
    assert "K/V fp8_e4m3, in float32: the gate passes" in out
    assert "\n  ----  two-digit sums      0 of 4, before 0; 0 of 0 clear ones lost" in out


def test_schemes_are_judged_each_by_itself_within_the_bounds_given(command):
    schemes = ("--quantization", "int8,int8_dynamic", "int4", "--kv-cache-dtype", "int8")
    exit_code, out, err = command("--dtype", "float32", "--json", *schemes, *LENIENT)
    assert exit_code == 0, err
    report = json.loads(out)
    assert [each["name"] for each in report["formats"]] == ["K/V int8", "int8", "int8_dynamic", "int4"]
    kl = [each["verdicts"][1]["value"] for each in report["formats"]]
    assert 0 < kl[1] < kl[2] < kl[3]
    exit_code, out, _ = command("--kv-cache-dtype", "int8", "--max-kl", 0, "--json")
    assert (exit_code, json.loads(out)["formats"][0]["verdicts"][1]["passed"]) == (1, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--quantization", "int5"), "int5"),
        (("--quantization", "int4_g128"), "groups of 128"),
        (("--quantization", ",", "--kv-cache-dtype", "int3"), "int3"),
        (("--tokens", 255), "must have 256 to 511"),
        (("--tokens", 600), "and has 600"),
        (("--text", "/no/such/file"), "--text must name a file that can be read"),
    ],
)
def test_what_cannot_be_judged_is_said(command, options, says):
    exit_code, _, err = command(*options)
    assert exit_code == 2
    assert says in err


def test_no_format_is_refused():
    with pytest.raises(ConfigError, match="at least one format"):
        quality.bench_quality(lambda variant: None, [])


def test_each_is_judged_in_its_own_dtype(wide_folder, command):
    """Quantised weights compute in bfloat16 on a CPU, a cache leaves the model in float32: neither pays for the other's."""
    opener = quality.open_model(str(wide_folder), device="cpu", attention_backend="torch")
    opened = []

    def open_llm(variant):
        opened.append(variant)
        return opener(replace(variant, quantization=None, dtype="bfloat16" if variant.quantization else variant.dtype))

    variants = [Variant(quantization="a"), Variant("int8"), Variant(quantization="b")]
    report = quality.bench_quality(open_llm, variants, num_tokens=256)
    assert opened == [variants[0], Variant(dtype="bfloat16"), variants[1], Variant(dtype="float32"), variants[2]]
    assert [each.dtype for each in report.formats] == ["bfloat16", "float32", "bfloat16"]
    assert [each.verdicts[1].value == 0 for each in report.formats] == [True, False, True]
    assert [each.name for each in report.formats] == ["a", "K/V int8", "b"]


def test_the_text_is_ours_cut_to_what_fits_or_the_users_own(wide_folder, command, monkeypatch):
    opener = quality.open_model(str(wide_folder), device="cpu", attention_backend="torch")
    llm, own = opener(Variant()), "It jumps over the dog. " * 200
    encode, text_ids = llm.tokenizer.encode, quality._text_ids
    assert text_ids(llm, None, prose(), None) == encode(prose())[:511]
    assert text_ids(llm, None, prose(), 300) == encode(prose())[:300]
    assert text_ids(llm, own, prose(), 300) == encode(own)[:300]
    with pytest.raises(ConfigError, match="must have 256 to 511 tokens"):
        text_ids(llm, own, prose(), None)
    read = []
    monkeypatch.setattr(quality, "_text_ids", lambda llm, text, ours, num_tokens: read.append(ours) or [5] * 300)
    for variants in ([Variant("int8")], [Variant("int8"), Variant(quantization="int8")]):
        quality.bench_quality(opener, variants)
    assert read[0] == prose()
    assert set(read[1:]) == {prose() + more_prose()}  # weights are read with more


def test_bounds_given_by_the_user_come_first():
    bounds = quality.bounds_for(Variant(quantization="int4_g64"), {"mean_kl": 0.5})
    assert bounds == replace(quality.FOUR_BITS, mean_kl=0.5)
    assert quality.bounds_for(Variant(quantization="int8_dynamic")) == quality.bounds_for(Variant("int8")) == BOUNDS
