"""`twophase bench speculative` and `--speculative`, as a user calls them."""

import json
import shutil

import pytest

from twophase_tools.cli.main import main


@pytest.fixture
def chat_folder(tiny_folder, tmp_path):
    """The tiny model with room for the questions, and a template for its tokenizer."""
    folder = shutil.copytree(tiny_folder, tmp_path / "chat")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize("model", ["chat_folder", pytest.param("smollm2_folder", marks=pytest.mark.full)])
def test_bench_reports_each_way_and_equal_tokens(model, request, capsys):
    folder = request.getfixturevalue(model)
    assert main(["bench", "speculative", "--model", str(folder), "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for result in report["results"]:
        assert [way["way"] for way in result["ways"]] == ["without", "always", "while it pays"]
        assert all(way["num_equal"] == result["num_requests"] for way in result["ways"])


def test_an_impossible_number_is_refused(smollm2_folder, capsys):
    command = ["generate", "Hello", "--model", str(smollm2_folder), "--speculative", "ngram"]
    assert main([*command, "--num-speculative-tokens", "0"]) != 0
    assert (
        "num_speculative_tokens must be a whole number >= 1 and <= 32 (later drafts are hardly ever accepted), got 0"
        in capsys.readouterr().err
    )
