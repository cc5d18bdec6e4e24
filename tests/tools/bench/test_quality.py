"""The gate lets int8 and fp8 through on the real model, and stops caches that are spoilt on purpose."""

import json
import math
from unittest.mock import Mock

import jsonschema
import numpy as np
import pytest
import torch

import twophase.attention.torch_backend as torch_backend
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.mutation import KillTable, Mutant
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase_kernels.quant import quantise_reference
from twophase_tools.bench import quality, quality_tasks
from twophase_tools.bench.perplexity import prose, step_logits
from twophase_tools.bench.quality_tasks import Answers

BOUNDS = quality.Bounds()


def three_bits(x, kv_format):
    """Levels -3 .. 3 instead of -127 .. 127."""
    scale = x.abs().amax(-1) / 3
    return (x / scale[:, None]).round().to(torch.int8), scale


def scrambled_scales(x, kv_format):
    """Each row with its neighbour's scale."""
    data, scale = quantise_reference(x, kv_format)
    return data, scale.roll(1)


# -- arithmetic, against other ways to compute it


def check_estimate(module) -> None:
    values = torch.tensor(np.random.default_rng(0).normal(3.0, 1.0, 1000)).double()
    means = values[:960].numpy().reshape(15, 64).mean(1)
    found = module.estimate(values)
    assert found.mean == pytest.approx(float(values.mean()))
    assert found.margin == pytest.approx(1.96 * means.std(ddof=1) / math.sqrt(15))
    values[700] = math.nan
    assert module.estimate(values) == module.Estimate(math.inf, 0.0)


def check_compare(module) -> None:
    old, new = torch.randn(2, 50, 30, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(50) % 30
    rises, kl, is_same = module._compare(old, new, targets).unbind(1)
    losses = [torch.nn.functional.cross_entropy(x, targets, reduction="none").double() for x in (old, new)]
    torch.testing.assert_close(rises, losses[1] - losses[0], atol=1e-5, rtol=1e-5)
    p, q = (torch.distributions.Categorical(logits=x.double()) for x in (old, new))
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(p, q), atol=1e-5, rtol=1e-5)
    assert is_same.tolist() == [float(a == b) for a, b in zip(old.argmax(1), new.argmax(1), strict=True)]


def drift_of(module, log_ratio=(0.0, 0.0), kl=(0.0, 0.0), top1=(1.0, 0.0)):
    return module.Drift(*(module.Estimate(*map(float, each)) for each in (log_ratio, kl, top1)))


def check_drift_verdicts(module) -> None:
    """Each line passes and fails alone, by its confidence limit on the bad side."""
    cases = [
        ({}, (True, True, True)),
        ({"log_ratio": (math.log(1.019), 0.0)}, (True, True, True)),
        ({"log_ratio": (math.log(1.019), 0.01)}, (False, True, True)),
        ({"log_ratio": (-0.5, 0.0)}, (True, True, True)),
        ({"kl": (0.019, 0.0005)}, (True, True, True)),
        ({"kl": (0.019, 0.002)}, (True, False, True)),
        ({"top1": (0.96, 0.005)}, (True, True, True)),
        ({"top1": (0.96, 0.02)}, (True, True, False)),
        ({"log_ratio": (math.inf, 0), "kl": (math.inf, 0)}, (False, False, True)),
    ]
    for drift, expected in cases:
        verdicts = module.drift_verdicts(drift_of(module, **drift), module.Bounds())
        assert tuple(verdict.passed for verdict in verdicts) == expected, drift


OBJECT = {"customer": "a", "item": "b", "quantity": 1, "city": "c"}
ALL_RIGHT = Answers((True,) * 4, (True,) * 2, (True,) * 2, (OBJECT, OBJECT))


def changed(**changes) -> Answers:
    fields = ("found", "guided_valid", "free_valid", "objects")
    return Answers(*(changes.get(name, getattr(ALL_RIGHT, name)) for name in fields))


def check_answer_verdicts(module) -> None:
    t, f = True, False
    cases = [
        (ALL_RIGHT, ALL_RIGHT, (t, t, t, t)),
        (ALL_RIGHT, changed(found=(t, t, t, f)), (t, t, t, t)),
        (ALL_RIGHT, changed(found=(f, t, t, f)), (f, t, t, t)),
        (ALL_RIGHT, changed(guided_valid=(t, f), objects=(OBJECT, {})), (t, f, t, f)),
        (ALL_RIGHT, changed(free_valid=(f, t)), (t, t, f, t)),
        (ALL_RIGHT, changed(objects=(OBJECT, OBJECT | {"item": "x"})), (t, t, t, f)),
        # What is found only afterwards makes up for nothing.
        (changed(found=(t, t, t, f)), changed(found=(f, f, t, t)), (f, t, t, t)),
        # A model that cannot do it at all is not judged by it.
        (changed(found=(t, f, f, f)), changed(found=(f, f, f, f)), (None, t, t, t)),
    ]
    for before, after, expected in cases:
        verdicts = module.answer_verdicts(before, after, module.Bounds())
        assert tuple(verdict.passed for verdict in verdicts) == expected, after


CHECKS = (check_estimate, check_compare, check_drift_verdicts, check_answer_verdicts)


@pytest.mark.parametrize("check", CHECKS)
def test_the_arithmetic(check):
    check(quality)


# name, old, new
MUTANTS = [
    ("the margin is forgotten", "worst, limit = kl.mean + kl.margin, bounds.mean_kl", "worst, limit = kl.mean, bounds.mean_kl"),
    ("the good side of the interval counts", "worst, limit = top1.mean - top1.margin", "worst, limit = top1.mean + top1.margin"),
    ("the mean ratio counts", 'Verdict("perplexity", high, limit, high <= limit, text)', 'Verdict("perplexity", high, limit, ratio <= limit, text)'),
    ("divergence the wrong way round", "kl = (old.exp() * (old - new)).sum(-1)", "kl = (new.exp() * (new - old)).sum(-1)"),
    ("losses of the wrong cache", "rise = (old - new).gather", "rise = (new - old).gather"),
    ("positions taken for independent", "margin = Z95 * float(stretches.std()) / math.sqrt(len(stretches))", "margin = Z95 * float(values.std()) / math.sqrt(len(values))"),
    ("NaN passes", "if math.isfinite(mean + margin) else", "if True else"),
    ("found makes up for lost", "num_lost = sum(was and not still for was, still in zip(old, new, strict=True))", "num_lost = sum(old) - sum(new)"),
    ("judged by what it never could", "if tells else None", "if True else None"),
    ("missing fields are equal", "field in old and field in new and old[field] == new[field]", "old.get(field) == new.get(field, old.get(field))"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [Mutant(n, quality.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, lambda module: [check(module) for check in CHECKS])


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


def tiny_llm(folder, kv_cache_dtype="auto", **options) -> LLM:
    limits = {"num_kv_blocks": 256, "max_num_seqs": 8, "max_num_batched_tokens": 48, "block_size": 4}
    return LLM(folder, device="cpu", attention_backend="torch", kv_cache_dtype=kv_cache_dtype, **{**limits, **options})


TEXT = [3 + 7 * i * i % 120 for i in range(250)]


def test_drift_is_that_of_the_logits(tiny_folder):
    before, after = tiny_llm(tiny_folder), tiny_llm(tiny_folder, "bfloat16")
    old, new = (torch.cat(list(step_logits(llm, TEXT)))[:-1].double() for llm in (before, after))
    drift = quality.measure_drift(before, after, TEXT)
    p, q = (torch.distributions.Categorical(logits=x) for x in (old, new))
    assert drift.kl.mean == pytest.approx(float(torch.distributions.kl_divergence(p, q).mean()), rel=0.05)
    targets = torch.tensor(TEXT[1:])
    assert drift.log_ratio.mean == pytest.approx(float((p.log_prob(targets) - q.log_prob(targets)).mean()), abs=1e-6)
    assert drift.top1.mean == pytest.approx(float((old.argmax(1) == new.argmax(1)).double().mean()))


def test_a_cache_does_not_drift_from_itself(tiny_folder):
    drift = quality.measure_drift(tiny_llm(tiny_folder), tiny_llm(tiny_folder), TEXT)
    assert (drift.log_ratio.mean, drift.kl.mean, drift.top1.mean) == (0, 0, 1)


@pytest.fixture
def few_questions(monkeypatch):
    monkeypatch.setattr(quality_tasks, "HAY_TOKENS", (400,))
    monkeypatch.setattr(quality_tasks, "ORDERS", quality_tasks.ORDERS[:3])
    monkeypatch.setattr(quality, "DECODE_ROUNDS", 1)


@pytest.fixture(scope="module")
def open_smollm2(smollm2_folder):  # noqa: F811
    return quality.open_model(str(smollm2_folder), device="cpu", dtype="auto", backend="torch")


def failed(report: quality.FormatReport) -> set[str]:
    return {verdict.name for verdict in report.verdicts if not verdict.passed}


@pytest.mark.full
def test_the_gate_tells_int8_from_three_bits(open_smollm2, few_questions, monkeypatch):
    before = open_smollm2("auto")
    answers = quality_tasks.answer(before)
    assert sum(answers.found) >= 6
    assert sum(answers.guided_valid) + sum(answers.free_valid) == 6
    token_ids = before.tokenizer.encode(prose())[:320]
    after = open_smollm2("int8")
    report = quality.judge("int8", before, after, answers, token_ids, BOUNDS)
    assert not failed(report), "\n".join(report.to_lines())
    assert report.bytes_ratio == pytest.approx(64 * 4 / (64 + 4))
    assert report.step_time_ratio > 0
    monkeypatch.setattr(torch_backend, "quantise_reference", three_bits)
    report = quality.judge("three bits", before, after, answers, token_ids, BOUNDS)
    assert not report.passed
    everything = {"perplexity", "mean KL divergence", "same top token", "needles found", "free JSON valid"}
    assert failed(report) >= everything | {"guided JSON fields"}, "\n".join(report.to_lines())


def test_the_gate_sees_scales_in_the_wrong_place(open_smollm2, monkeypatch):
    before, after = open_smollm2("auto"), open_smollm2("int8")
    token_ids = before.tokenizer.encode(prose())[:384]
    monkeypatch.setattr(torch_backend, "quantise_reference", scrambled_scales)
    verdicts = list(quality.drift_verdicts(quality.measure_drift(before, after, token_ids), BOUNDS))
    assert [verdict.passed for verdict in verdicts] == [False, False, False]


@pytest.mark.full
def test_the_whole_gate_lets_int8_and_fp8_through(open_smollm2, monkeypatch):
    monkeypatch.setattr(quality, "DECODE_ROUNDS", 1)  # no time is judged
    report = quality.bench_quality(open_smollm2, ["int8", "fp8_e4m3"])
    assert report.passed, report.to_text()


# -- the command


def quick_command(twophase, folder, monkeypatch, *options):  # noqa: F811
    monkeypatch.setattr(quality, "answer", lambda llm: ALL_RIGHT)
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
    lenient = ("--max-perplexity-ratio", 2, "--max-kl", 1, "--min-top1-agreement", 0)
    exit_code, out, err = quick_command(twophase, wide_folder, monkeypatch, *lenient)
    assert exit_code == 0, err
    assert "int8: the gate passes" in out
    assert "fp8_e4m3: the gate passes" in out
    assert "3.20x fewer bytes per token" in out  # 16 * 4 / (16 + 4)
    assert "the time of a decode step" in out


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
        quality.bench_quality(lambda name: None, ["int8"], num_tokens=255)
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
        quality.bench_quality(lambda name: None, [])
