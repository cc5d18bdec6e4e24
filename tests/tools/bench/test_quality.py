"""The gate lets int8 and fp8 caches through on the real model, and stops caches and weights that are spoilt on purpose."""

import argparse
import json
import math
import re
from dataclasses import replace
from unittest.mock import Mock

import jsonschema
import pytest
import torch

import twophase.attention.torch_backend as torch_backend
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.tools.bench.quality_weights import rounded_folder, with_rounded_weights
from tests.tools.bench.test_quality_verdict import ALL_RIGHT, OBJECT
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase.model.linear import make_linear
from twophase_kernels.quant import quantise_reference
from twophase_tools.bench import quality, quality_cost, quality_probes, quality_tasks
from twophase_tools.bench.perplexity import more_prose, prose
from twophase_tools.bench.quality import Variant
from twophase_tools.bench.quality_probes import Outcome, Slice
from twophase_tools.cli import bench

BOUNDS = quality.Bounds()
SLICES = {"code continued": Slice((Outcome(True),) * 4), "two-digit sums": Slice((Outcome(False),) * 4)}


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
def open_smollm2(smollm2_folder):  # noqa: F811
    return quality.open_model(str(smollm2_folder), device="cpu", dtype="auto", backend="torch")


def failed(report: quality.FormatReport) -> set[str]:
    return {verdict.name for verdict in report.verdicts if verdict.passed is False}


@pytest.fixture(scope="module")
def before(open_smollm2):
    """SmolLM2's own answers to a few of the questions, and the patch under which the others answer as few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality_tasks, "HAY_TOKENS", (400,))
        patch.setattr(quality_tasks, "ORDERS", quality_tasks.ORDERS[:3])
        patch.setattr(quality_cost, "DECODE_ROUNDS", 1)  # no time is judged
        llm = open_smollm2(Variant())
        token_ids = llm.tokenizer.encode(prose())[:320]
        yield quality.Before(llm, token_ids, quality_tasks.answer(llm), quality_probes.probe(llm))


@pytest.mark.full
def test_the_gate_tells_eight_bits_from_three(open_smollm2, before, monkeypatch):
    assert sum(before.answers.found) >= 6
    assert sum(before.answers.guided_valid) + sum(before.answers.free_valid) == 6
    whole_text = replace(before, token_ids=before.llm.tokenizer.encode(prose()))  # 320 tokens do not decide on fp8
    for kv_format, asked in (("fp8_e4m3", whole_text), ("int8", before)):
        after = open_smollm2(Variant(kv_format))
        report = quality.judge(kv_format, asked, after, BOUNDS)
        assert not failed(report), "\n".join(report.to_lines())
    assert report.bytes_ratio == pytest.approx(64 * 4 / (64 + 4))
    assert report.step_time_ratio > 0
    monkeypatch.setattr(torch_backend, "quantise_reference", three_bits)
    report = quality.judge("three bits", before, after, BOUNDS)
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
def test_the_gate_tells_eight_bits_of_weights_from_two(open_smollm2, before):
    """The same model passes with nothing lost; rounded to 8 bits it passes; to 2 bits every line that tells fails."""
    report = quality.judge("the same", before, open_smollm2(Variant()), BOUNDS)
    assert (report.passed, report.used) == (True, 0), "\n".join(report.to_lines())
    telling = {verdict.name for verdict in report.verdicts if verdict.passed}
    assert set(quality.WEIGHTS) - telling == {"two-digit sums", "own choices"}
    report = quality.judge("8 bits", before, with_rounded_weights(open_smollm2(Variant()), 8), BOUNDS)
    assert report.passed, "\n".join(report.to_lines())
    report = quality.judge("2 bits", before, with_rounded_weights(open_smollm2(Variant()), 2), quality.FOUR_BITS)
    # A mask makes objects of whatever a model says; and what says nothing sensible refuses nothing, which is an answer.
    assert failed(report) >= telling - {"guided JSON valid", "harmless answered"}, "\n".join(report.to_lines())
    assert report.used > 0.8


# -- the command


def without_questions(monkeypatch):
    monkeypatch.setattr(quality, "answer", lambda llm: ALL_RIGHT)
    monkeypatch.setattr(quality, "probe", lambda llm, own=(): SLICES)
    monkeypatch.setattr(quality_cost, "DECODE_ROUNDS", 1)  # no time is judged


def quick_command(twophase, folder, monkeypatch, *options):  # noqa: F811
    without_questions(monkeypatch)
    return twophase("bench", "quality", "--model", folder, "--device", "cpu", "--tokens", 256, *options)


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory):
    """A random model whose heads are wide enough for int8."""
    from tests.engine.tokenizers_for_tests import byte_level
    from tests.model.tiny import make_folder

    folder = tmp_path_factory.mktemp("wide")
    tokenizer = byte_level()
    make_folder(
        "llama-wide-heads",
        folder,
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.end_id,
        max_position_embeddings=512,
    )
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_the_command_passes_and_prints_what_is_saved(twophase, wide_folder, monkeypatch):  # noqa: F811
    lenient = ("--max-perplexity-ratio", 4, "--max-kl", 1, "--min-top1-agreement", 0)
    exit_code, out, err = quick_command(twophase, wide_folder, monkeypatch, *lenient)
    assert exit_code == 0, err
    assert "K/V int8, in float32: the gate passes" in out
    assert "K/V fp8_e4m3, in float32: the gate passes" in out
    assert "3.20x fewer bytes per token" in out  # 16 * 4 / (16 + 4)
    assert "the time of a decode step" in out
    assert "bytes of weights" not in out
    assert re.search(r"\n  ----  two-digit sums +0 of 4, before 0; 0 of 0 clear ones lost", out)
    assert re.search(r"\n  pass  all together +\d+%  of what may be lost is lost", out)


def test_the_command_fails_with_status_1(twophase, wide_folder, monkeypatch):  # noqa: F811
    options = ("--kv-cache-dtype", "int8", "--max-kl", 0, "--json")
    exit_code, out, _ = quick_command(twophase, wide_folder, monkeypatch, *options)
    report = json.loads(out)
    assert (exit_code, report["passed"]) == (1, False)
    (verdict,) = [each for each in report["formats"][0]["verdicts"] if each["name"] == "mean KL divergence"]
    assert verdict["passed"] is False


def test_a_broken_cache_is_still_json(twophase, wide_folder, monkeypatch):  # noqa: F811
    def spoilt(x, kv_format):
        data, scale = quantise_reference(x, kv_format)
        return data, scale * math.nan

    monkeypatch.setattr(torch_backend, "quantise_reference", spoilt)
    with pytest.raises(ConfigError, match="at least 256"):
        quality.bench_quality(lambda variant: None, [Variant("int8")], num_tokens=255)
    exit_code, out, err = quick_command(twophase, wide_folder, monkeypatch, "--kv-cache-dtype", "int8", "--json")
    assert (exit_code, json.loads(out)["passed"]) == (1, False), err


def test_the_command_reads_a_text_of_the_users(twophase, wide_folder, monkeypatch, tmp_path):  # noqa: F811
    path = tmp_path / "own.txt"
    options = ("--kv-cache-dtype", "int8", "--text", path, "--json")
    for content, says in ((None, "--text must name a file that can be read"), ("too short", "must have 256 to 511")):
        if content is not None:
            path.write_text(content, encoding="utf-8")
        exit_code, _, err = quick_command(twophase, wide_folder, monkeypatch, *options)
        assert exit_code == 2
        assert says in err
    path.write_text("def f(x):\n    return x\n" * 100, encoding="utf-8")
    spy = Mock(wraps=quality.measure_drift)
    monkeypatch.setattr(quality, "measure_drift", spy)
    _, out, err = quick_command(twophase, wide_folder, monkeypatch, *options)
    assert json.loads(out)["num_tokens"] == 256, err
    before, _, token_ids = spy.call_args.args
    assert before.tokenizer.decode(token_ids).startswith("def f(x):\n    return x\ndef f(x)")


def test_no_format_is_refused():
    with pytest.raises(ConfigError, match="at least one format"):
        quality.bench_quality(lambda variant: None, [])


# -- weights: the engine's own are tested with the engine, these are rounded by the tests


@pytest.fixture(scope="module")
def open_wide(wide_folder, tmp_path_factory):
    """`open_llm` for the model of random weights: 'fine' has 10 bits of weights, 'int4_coarse' has 3."""
    folders = {None: wide_folder}
    for name, bits in (("fine", 10), ("int4_coarse", 3)):
        folders[name] = rounded_folder(wide_folder, tmp_path_factory.mktemp(name) / "model", bits)

    openers = {
        name: quality.open_model(str(folder), device="cpu", dtype="auto", backend="torch")
        for name, folder in folders.items()
    }
    return lambda variant: openers[variant.quantization](replace(variant, quantization=None))


def test_weights_are_judged_against_the_model_without(open_wide, monkeypatch):
    without_questions(monkeypatch)
    schemes = [Variant(quantization=name) for name in ("fine", "int4_coarse")]
    report = quality.bench_quality(open_wide, schemes, num_tokens=256)
    fine, coarse = report.formats
    assert [fine.name, coarse.name] == ["fine", "int4_coarse"]
    assert not failed(fine), "\n".join(fine.to_lines())
    assert failed(coarse) == {"perplexity", "mean KL divergence", "same top token"}
    assert not report.passed
    bounds = [
        {verdict.name: verdict.bound for verdict in each.verdicts}["mean KL divergence"] for each in report.formats
    ]
    assert bounds == [BOUNDS.mean_kl, quality.FOUR_BITS.mean_kl]
    assert (fine.bytes_ratio, fine.weight_bytes_ratio, fine.memory_bytes_ratio) == (1, 1, 1)


def test_a_model_passes_against_itself(open_wide, monkeypatch):
    without_questions(monkeypatch)
    report = quality.bench_quality(open_wide, [Variant()], num_tokens=256)
    assert (report.passed, report.formats[0].used) == (True, 0)
    assert report.formats[0].name == "K/V auto"


def test_each_is_judged_in_its_own_dtype(wide_folder, monkeypatch):
    """Quantised weights compute in bfloat16 on a CPU, a cache leaves the model in float32: neither pays for the other's."""
    without_questions(monkeypatch)
    opener = quality.open_model(str(wide_folder), device="cpu", dtype="auto", backend="torch")
    opened = []

    def open_llm(variant):
        opened.append(variant)
        return opener(replace(variant, quantization=None, dtype="bfloat16" if variant.quantization else variant.dtype))

    variants = [Variant(quantization="a"), Variant("int8"), Variant(quantization="b")]
    report = quality.bench_quality(open_llm, variants, num_tokens=256)
    assert opened == [variants[0], Variant(dtype="bfloat16"), variants[1], Variant(dtype="float32"), variants[2]]
    assert [each.dtype for each in report.formats] == ["bfloat16", "float32", "bfloat16"]
    assert [each.used == 0 for each in report.formats] == [True, False, True]
    assert [variant.name for variant in (*variants, Variant("int8", "a"), Variant())] == [
        "a", "K/V int8", "b", "a, K/V int8", "K/V auto",
    ]  # fmt: skip


def test_weights_are_read_with_more_text(open_wide, monkeypatch):
    """What comes with the package; a text of the user's own is read as it is."""
    without_questions(monkeypatch)
    read = []
    monkeypatch.setattr(quality, "text_ids", lambda llm, text, ours, num_tokens: read.append(ours) or [5] * 300)
    for variants in ([Variant("int8")], [Variant("int8"), Variant(quantization="fine")]):
        quality.bench_quality(open_wide, variants)
    assert read == [prose(), prose() + more_prose()]
    assert more_prose() not in prose()


def test_our_text_is_cut_to_what_fits_and_the_users_is_not(wide_folder):
    llm = quality.open_model(str(wide_folder), device="cpu", dtype="auto", backend="torch")(Variant())
    ours, own = "The quick brown fox. " * 200, "It jumps over the dog. " * 200
    all_ids = llm.tokenizer.encode(ours)
    assert len(all_ids) > 511
    assert quality.text_ids(llm, None, ours, None) == all_ids[:511]
    assert quality.text_ids(llm, None, ours, 300) == all_ids[:300]
    assert quality.text_ids(llm, own, ours, 300) == llm.tokenizer.encode(own)[:300]
    with pytest.raises(ConfigError, match="must have 256 to 511 tokens"):
        quality.text_ids(llm, own, ours, None)
    with pytest.raises(ConfigError, match="must have 256 to 511 tokens"):
        quality.text_ids(llm, None, ours, 600)


def test_all_lines_together_may_fail_what_each_lets_through(open_wide, monkeypatch):
    """Three of four kept is within the bound given, and more than half of what it allows."""
    without_questions(monkeypatch)
    slices = iter([SLICES, SLICES | {"code continued": Slice((*(Outcome(True),) * 3, Outcome(False)))}])
    monkeypatch.setattr(quality, "probe", lambda llm, own=(): next(slices))
    weights = dict.fromkeys(quality.WEIGHTS, 0) | {"code continued": 1}
    report = quality.bench_quality(open_wide, [Variant()], {"answers_kept": 0.7}, weights=weights, num_tokens=256)
    (alone,) = report.formats
    assert failed(alone) == set()
    assert (report.passed, alone.passed, alone.used) == (False, False, pytest.approx(0.25 / 0.3))
    assert "  FAIL  all together" in report.to_text()


def test_bounds_given_by_the_user_come_first():
    bounds = quality.bounds_for(Variant(quantization="int4_g64"), {"mean_kl": 0.5})
    assert bounds == replace(quality.FOUR_BITS, mean_kl=0.5)
    assert quality.bounds_for(Variant(quantization="int8_dynamic")) == quality.bounds_for(Variant("int8")) == BOUNDS


def test_the_engines_own_schemes_are_judged(tmp_path, monkeypatch):
    """Layers with inputs in groups of 32; what is stored is counted by hand."""
    from tests.engine.tokenizers_for_tests import byte_level
    from tests.model.tiny import make_folder

    without_questions(monkeypatch)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    tokenizer = byte_level()
    make_folder("llama", tmp_path, vocab_size=tokenizer.vocab_size, max_position_embeddings=512, **sizes)
    tokenizer.tokenizer.save(str(tmp_path / "tokenizer.json"))
    opener = quality.open_model(str(tmp_path), device="cpu", dtype="float32", backend="torch")
    schemes = ("int8", "int8_dynamic", "int4")
    report = quality.bench_quality(opener, [Variant(quantization=name) for name in schemes], num_tokens=256)
    kl = [{verdict.name: verdict.value for verdict in each.verdicts}["mean KL divergence"] for each in report.formats]
    assert 0 < kl[0] < kl[1] < kl[2]
    in_layers, in_table = 2 * 64 * (64 + 32 + 32 + 64 + 3 * 96), tokenizer.vocab_size * 64
    # A scale and a minimum of 16 bits for each 32; a head of int8 with a scale for each output; a plain embedding.
    stored = in_layers // 2 + in_layers // 32 * 4 + in_table + tokenizer.vocab_size * 2 + in_table * 4
    four_bits = report.formats[2]
    assert four_bits.weight_bytes == stored
    assert four_bits.weight_bytes_ratio == pytest.approx(4 * (in_layers + 2 * in_table) / stored)
    assert "fewer bytes of weights, stored in their bits" in report.to_text()


def test_bytes_of_weights_count_shared_memory_once():
    weight = torch.zeros(6, 4)
    plain = make_linear(torch.ones(8, 4))
    assert quality_cost.weight_memory_bytes(plain) == 8 * 4 * 4
    assert quality_cost.weight_memory_bytes((weight, (weight[:3], weight.T), None, 3, plain)) == (6 * 4 + 8 * 4) * 4
    assert quality_cost.weight_memory_bytes(torch.zeros(3, dtype=torch.int8)) == 3


def command(open_wide, monkeypatch, **options):
    """Run `bench quality` with these options, as the parser hands them over, on the models of `open_wide`."""
    monkeypatch.setattr(quality, "open_model", lambda *args, **kwargs: open_wide)
    given = {"model": "any", "text": None, "tokens": 256, "json": False} | options
    return bench.run(argparse.Namespace(subject="quality", **given))


def test_the_command_judges_caches_and_weights(open_wide, monkeypatch, capsys):
    without_questions(monkeypatch)
    given = {"quantization": ["fine,int4_coarse"], "kv_cache_dtype": ["int8"], "max_kl": 10.0}
    exit_code = command(open_wide, monkeypatch, **given, weight=["perplexity=0"], json=True)
    report = json.loads(capsys.readouterr().out)
    assert exit_code == 1
    assert [each["name"] for each in report["formats"]] == ["K/V int8", "fine", "int4_coarse"]
    assert {
        verdict["bound"] for each in report["formats"] for verdict in each["verdicts"] if "KL" in verdict["name"]
    } == {10}
    assert command(open_wide, monkeypatch, quantization=["fine"]) == 0
    assert capsys.readouterr().out.startswith("fine, in float32: the gate passes")


def test_the_command_asks_the_users_own_choices(open_wide, monkeypatch, tmp_path, capsys):
    without_questions(monkeypatch)
    asked = []
    monkeypatch.setattr(quality, "probe", lambda llm, own=(): asked.append(own) or SLICES)
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "a", "right": "b", "wrong": ["c"]}', encoding="utf-8")
    command(open_wide, monkeypatch, quantization=["fine"], choices=str(file))
    assert asked == [(quality_probes.Choice("a", "b", ("c",)),)] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"picture": "x.png"}, "--picture .* needs --sensitivity"),
        ({"quantization": ["fine"], "weight": ["x"]}, "--weight must be"),
        ({"quantization": ["fine"], "choices": "/no/such/file"}, "--choices must name a file"),
        ({"kv_cache_dtype": [], "quantization": [","]}, "at least one format"),
        ({"sensitivity": True}, "--sensitivity needs one scheme"),
        ({"sensitivity": True, "quantization": ["fine,int4_coarse"]}, "needs one scheme.*got 2"),
        ({"sensitivity": True, "quantization": ["fine"], "max_kl": 1.0}, "judges nothing: leave out --max-kl"),
        ({"sensitivity": True, "quantization": ["fine"], "picture": "x.txt"}, "--picture must end in"),
        ({"sensitivity": True, "quantization": ["fine"], "picture": "/no/such/x.png"}, "--picture must name a file"),
        ({"sensitivity": True, "quantization": ["fine"], "tokens": 255}, "--tokens must be at least 256"),
    ],
)
def test_what_makes_no_sense_is_refused(open_wide, monkeypatch, options, says):
    with pytest.raises(ConfigError, match=says):
        command(open_wide, monkeypatch, **options)
