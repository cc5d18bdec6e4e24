"""`twophase bench speculative` and `--speculative`, as a user calls them."""

import json

from twophase_tools.cli.main import main


def test_bench_reports_each_way_and_equal_tokens(smollm2_folder, capsys):
    assert main(["bench", "speculative", "--model", str(smollm2_folder), "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for result in report["results"]:
        assert [way["way"] for way in result["ways"]] == ["without", "always", "while it pays"]
        assert all(way["num_equal"] == result["num_requests"] for way in result["ways"])


def test_an_impossible_number_is_refused(smollm2_folder, capsys):
    command = ["generate", "Hello", "--model", str(smollm2_folder), "--speculative", "ngram"]
    assert main([*command, "--num-speculative-tokens", "0"]) != 0
    assert "num_speculative_tokens must be a whole number >= 1, got 0" in capsys.readouterr().err
