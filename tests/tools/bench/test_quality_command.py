"""`twophase bench quality` for weights, from its words to its exit status, on the engine's own schemes."""

import json

import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from tests.tools.bench.test_quality import without_questions
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model whose layers have inputs in groups of 32."""
    folder = tmp_path_factory.mktemp("groups")
    tokenizer = byte_level()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, max_position_embeddings=512, **sizes)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def quality(twophase, folder, *options):  # noqa: F811
    return twophase("bench", "quality", "--model", folder, "--device", "cpu", "--tokens", 256, *options)


def test_schemes_are_judged_each_by_itself(twophase, folder, monkeypatch):  # noqa: F811
    without_questions(monkeypatch)
    lenient = ("--max-perplexity-ratio", 10, "--max-kl", 10, "--min-top1-agreement", 0, "--max-used", 1)
    schemes = ("--quantization", "int8,int8_dynamic", "int4")
    exit_code, out, err = quality(twophase, folder, "--dtype", "float32", "--json", *schemes, *lenient)
    assert exit_code == 0, err
    report = json.loads(out)
    assert [each["name"] for each in report["formats"]] == ["int8", "int8_dynamic", "int4"]
    kl = [each["verdicts"][1]["value"] for each in report["formats"]]
    assert 0 < kl[0] < kl[1] < kl[2]
    assert quality(twophase, folder, "--quantization", "int8", "--max-kl", 0)[0] == 1
    assert quality(twophase, folder, "--quantization", "int8", *lenient, "--max-used", 0)[0] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--quantization", "int5"), "int5"),
        (("--quantization", "int4_g128"), "groups of 128"),
        (("--sensitivity",), "--sensitivity needs one scheme"),
        (("--quantization", "int8", "--weight", "luck=3"), "--weight must be LINE=W"),
    ],
)
def test_what_cannot_be_judged_is_said(twophase, folder, monkeypatch, options, says):  # noqa: F811
    without_questions(monkeypatch)
    exit_code, _, err = quality(twophase, folder, *options)
    assert exit_code == 2
    assert says in err


def test_sensitivity_ends_with_a_picture(twophase, folder, tmp_path):  # noqa: F811
    picture = tmp_path / "layers.svg"
    options = ("--sensitivity", "--quantization", "int4", "--dtype", "float32", "--picture", picture)
    exit_code, out, err = quality(twophase, folder, *options)
    assert exit_code == 0, err
    assert "layer 1" in out
    assert "first to break: layer" in out
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
