"""One part of a model at a time is quantised, and nothing else; what that costs is what a model quantised there costs."""

import argparse
import json
import math
import re
from contextlib import suppress

import pytest

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.tools.bench.quality_weights import rounded_folder
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase_tools.bench import quality, sensitivity
from twophase_tools.bench.quality import Variant
from twophase_tools.bench.quality_drift import measure_drift
from twophase_tools.bench.sensitivity import KINDS
from twophase_tools.bench.sensitivity_picture import draw_sensitivity
from twophase_tools.cli import bench

TEXT = "The quick brown fox jumps over the lazy dog, doesn't it? " * 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model of three layers, with a tokenizer."""
    from tests.engine.tokenizers_for_tests import byte_level

    folder = tmp_path_factory.mktemp("three_layers")
    tokenizer = byte_level()
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, num_hidden_layers=3, max_position_embeddings=512)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def open_llm(folder, **options) -> LLM:
    return LLM(
        folder,
        device="cpu",
        attention_backend="torch",
        num_kv_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        **options,
    )


@pytest.fixture(scope="module")
def both(folder, tmp_path_factory):
    """`open_llm` of a model whose quantised weights have 4 bits, those of layer 1 only 2."""
    by_bits = rounded_folder(folder, tmp_path_factory.mktemp("a") / "model", 2, lambda name: ".layers.1." in name)
    coarse = rounded_folder(by_bits, tmp_path_factory.mktemp("b") / "model", 4, lambda name: ".layers.1." not in name)
    return lambda variant: open_llm(coarse if variant.quantization else folder, dtype=variant.dtype or "auto")


@pytest.fixture(scope="module")
def report(both):
    return sensitivity.bench_sensitivity(both, "int4", text=TEXT, num_tokens=256)


# -- which weights are taken


def taken(module, plain, quantised, **part) -> set[tuple[int | None, str]]:
    """The linear layers that come from the quantised model; all others must be the plain ones."""
    found = module.mixed(plain, quantised, module.Part(**part))
    places = {(None, "head"): [weights.lm_head for weights in (found, plain, quantised)]}
    for number, layers in enumerate(zip(found.layers, plain.layers, quantised.layers, strict=True)):
        places |= {(number, kind): [getattr(layer, kind) for layer in layers] for kind in ("qkv", "o")}
        places |= {(number, kind): [getattr(layer.mlp, kind) for layer in layers] for kind in ("gate_up", "down")}
    for found_one, plain_one, quantised_one in places.values():
        assert plain_one is not quantised_one
        assert any(found_one is each for each in (plain_one, quantised_one))
    return {place for place, (found_one, _, quantised_one) in places.items() if found_one is quantised_one}


def check_parts(module, plain, quantised) -> None:
    numbers, in_layers = range(len(plain.layers)), [kind for kind in KINDS if kind != "head"]
    every = {(number, kind) for number in numbers for kind in in_layers}
    assert taken(module, plain, quantised) == every | {(None, "head")}
    assert taken(module, plain, quantised, kind="head") == {(None, "head")}
    for number in numbers:
        assert taken(module, plain, quantised, layer=number) == {(number, kind) for kind in in_layers}
        assert taken(module, plain, quantised, layer=number, kind="o") == {(number, "o")}
    for kind in in_layers:
        assert taken(module, plain, quantised, kind=kind) == {(number, kind) for number in numbers}
    found = module.mixed(plain, quantised, module.Part())
    for name in ("dtype", "embed", "final_norm"):
        assert getattr(found, name) is getattr(plain, name)
    assert all(layer.input_norm is old.input_norm for layer, old in zip(found.layers, plain.layers, strict=True))


def check_restored(module, llm) -> None:
    own, other = llm.model.weights, module.mixed(llm.model.weights, llm.model.weights, module.Part())
    with suppress(RuntimeError), module.replaced_weights(llm, other):
        assert llm.model.weights is other
        raise RuntimeError
    assert llm.model.weights is own


@pytest.fixture(scope="module")
def pair(folder):
    return open_llm(folder), open_llm(folder)


def test_only_the_part_is_quantised(pair):
    check_parts(sensitivity, *(llm.model.weights for llm in pair))
    check_restored(sensitivity, pair[0])


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe-some-dense"])
def test_experts_are_linear_layers_too(tmp_path, family):
    make_folder(family, tmp_path)
    plain, quantised = (open_llm(tmp_path, skip_tokenizer_init=True).model.weights for _ in range(2))
    check_parts(sensitivity, plain, quantised)


# name, old, new
MUTANTS = [
    ("the head is in every layer", "return self.layer in (None, layer) and", "return (layer is None or self.layer in (None, layer)) and"),
    ("a kind in one layer is in all", "return self.layer in (None, layer) and", "return True and"),
    ("a layer has one kind", 'o=of("o").o, mlp=mlp)', "o=plain.o, mlp=mlp)"),
    ("gate and up go with down", 'gate_up=of("gate_up")', 'gate_up=of("down")'),
    ("the head stays plain", '(quantised if part.holds(None, "head") else plain).lm_head', "plain.lm_head"),
    ("norms are taken, too", "    return replace(plain, qkv=of", "    return replace(quantised, qkv=of"),
    ("weights are left behind", "    finally:\n        llm.model.weights = own", "    finally:\n        pass"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [Mutant(n, sensitivity.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name)
def test_mutants_are_killed(mutant, pair):
    own = pair[0].model.weights

    def check(module) -> None:
        try:
            check_parts(module, *(llm.model.weights for llm in pair))
            check_restored(module, pair[0])
        finally:
            pair[0].model.weights = own

    KillTable.record(mutant, check)


# -- what it costs


def test_damage_is_that_of_a_model_rounded_there(folder, both, report, tmp_path):
    """Against a folder in which only these tensors are rounded, opened on its own."""
    rounded_there = {
        "layer 0": lambda name: ".layers.0." in name,
        "layer 2": lambda name: ".layers.2." in name,
        "head": lambda name: name == "lm_head.weight",
    }
    damages = {damage.part: damage.drift for damage in (*report.layers, *report.kinds, report.everything)}
    assert list(damages) == ["layer 0", "layer 1", "layer 2", *KINDS, "everything"]
    plain = both(Variant())
    token_ids = plain.tokenizer.encode(TEXT)[:256]
    for part, is_rounded in rounded_there.items():
        alone = open_llm(rounded_folder(folder, tmp_path / part, 4, is_rounded))
        expected = measure_drift(plain, alone, token_ids)
        assert damages[part].kl.mean == pytest.approx(expected.kl.mean, rel=1e-4)
        assert damages[part].log_ratio.mean == pytest.approx(expected.log_ratio.mean, abs=1e-5)
        assert damages[part].top1 == expected.top1
    expected = measure_drift(plain, both(Variant(quantization="int4")), token_ids)
    assert damages["everything"].kl.mean == pytest.approx(expected.kl.mean, rel=1e-4)


def test_the_coarsest_layer_breaks_first(report):
    assert report.worst_first[0].part == "layer 1"
    one_by_one = [
        damage.drift.kl.mean
        for damage in (*report.layers, *report.kinds)
        if "layer" in damage.part or damage.part == "head"
    ]
    assert report.sum_over_layers == pytest.approx(sum(one_by_one))
    text = report.to_text()
    assert "first to break: layer 1, " in text
    damages = (*report.layers, *report.kinds)
    rows = dict(re.findall(r"^  (layer \d+|[a-z_]+) +\d\..*%(.*)$", text, re.MULTILINE))
    most = max(damage.drift.kl.mean for damage in damages)
    bars = {damage.part: sensitivity.BAR_WIDTH * damage.drift.kl.mean / most for damage in damages}
    assert {part: row.count("#") for part, row in rows.items()} == {part: round(bar) for part, bar in bars.items()} | {
        "everything": 0
    }


def test_what_is_not_quantised_costs_nothing(folder):
    report = sensitivity.bench_sensitivity(lambda variant: open_llm(folder), "none", text=TEXT, num_tokens=256)
    drifts = [damage.drift for damage in (*report.layers, *report.kinds, report.everything)]
    assert {(drift.kl.mean, drift.log_ratio.mean, drift.top1.mean) for drift in drifts} == {(0, 0, 1)}
    assert "#" not in report.to_text()
    draw_sensitivity(report)  # no mark at all, and no error


def test_both_are_opened_in_the_dtype_of_the_quantised(folder):
    """As a quantised model computes in bfloat16 on a CPU."""
    opened = []

    def opener(variant):
        opened.append(variant)
        return open_llm(folder, dtype="bfloat16" if variant.quantization else variant.dtype)

    report = sensitivity.bench_sensitivity(opener, "int4", text=TEXT, num_tokens=256)
    assert opened == [Variant(quantization="int4"), Variant(dtype="bfloat16")]
    assert report.dtype == "bfloat16"
    assert report.everything.drift.kl.mean == 0


def test_one_dtype_is_needed(folder):
    plain, other = open_llm(folder), open_llm(folder, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"one dtype, got torch\.float32 and torch\.bfloat16"):
        sensitivity.mixed(plain.model.weights, other.model.weights, sensitivity.Part())


# -- picture and command


def marks(axes) -> list[float]:
    return [float(container.lines[0].get_ydata()[0]) for container in axes.containers]


def test_the_picture_has_a_mark_for_each_part(report):
    by_layer, by_kind = draw_sensitivity(report).axes
    assert marks(by_layer) == [damage.drift.kl.mean for damage in report.layers]
    assert marks(by_kind) == [damage.drift.kl.mean for damage in (*report.kinds, report.everything)]
    assert [tick.get_text() for tick in by_kind.get_xticklabels()] == [*KINDS, "everything"]
    assert by_layer.get_yscale() == by_kind.get_yscale() == "log"


def test_an_infinite_damage_has_no_mark(report):
    from dataclasses import replace

    endless = replace(
        report.layers[0].drift, kl=quality.Estimate(math.inf, 0.0), log_ratio=quality.Estimate(math.inf, 0.0)
    )
    broken = replace(report, layers=(replace(report.layers[0], drift=endless), *report.layers[1:]))
    assert len(marks(draw_sensitivity(broken).axes[0])) == 2
    assert "inf" in broken.to_text()


def test_the_command(both, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(quality, "open_model", lambda *args, **kwargs: both)
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    given = {
        "sensitivity": True,
        "quantization": ["int4"],
        "model": "any",
        "tokens": 256,
        "text": str(tmp_path / "text"),
    }
    picture = tmp_path / "sensitivity.png"
    args = argparse.Namespace(subject="quality", json=True, picture=str(picture), **given)
    assert bench.run(args) == 0
    printed = capsys.readouterr()
    assert [damage["part"] for damage in json.loads(printed.out)["layers"]] == ["layer 0", "layer 1", "layer 2"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture}" in printed.err
    assert "int4: layer 1" in printed.err
    assert bench.run(argparse.Namespace(subject="quality", json=False, **given)) == 0
    assert "first to break: layer 1" in capsys.readouterr().out
