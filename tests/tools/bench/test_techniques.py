"""Each technique's benchmark runs from end to end on a small model and shows what it is for; no time is judged."""

import json

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from tests.tools.cli.conftest import run_cli, twophase  # noqa: F401  (a fixture)
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.techniques import Case, Report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with a tokenizer and room for the windows."""
    folder = tmp_path_factory.mktemp("techniques")
    tokenizer = byte_level()
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, max_position_embeddings=16384)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def cases_of(name, folder, *options):
    done = run_cli("bench", name, "--quick", "--json", "--device", "cpu", "--model", folder, *options)
    assert done.returncode == 0, done.stderr
    return {case["name"]: case["rows"] for case in json.loads(done.stdout)["cases"]}


def test_prefix_caching(folder):
    hits, shared, alone, attack = cases_of("prefix-caching", folder).values()
    assert [row["tokens found"] for row in hits.values()] == [0, 32, 32]  # the last token is computed in any case
    assert shared["with prefix caching"]["tokens found"] == 3 * 32
    assert shared["without"]["tokens found"] == 0
    assert shared["with prefix caching"]["most blocks"] < shared["without"]["most blocks"]
    assert alone["with prefix caching"]["tokens found"] == 0
    assert list(attack) == ["one cache for all", "a salt per tenant"]
    assert all(row["of"] == 2 and 0 <= row["secrets found"] <= 2 for row in attack.values())


def test_speculative(folder):
    found = cases_of("speculative", folder)
    for rows in found.values():
        assert list(rows) == ["without", "always", "while it pays"]
        assert (rows["without"]["drafts"], rows["without"]["share accepted"]) == (0, None)


def test_window(folder):
    (rows,) = cases_of("window", folder).values()
    everything, sinks, none = (row["blocks at the end"] for row in rows.values())
    assert everything == 640 // 16
    assert none <= sinks < 64 // 16 + 4
    assert rows["all keys"]["perplexity"] != rows["window 64, 4 sinks"]["perplexity"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("speculative", "--repeats", "0"), "--repeats: must be at least 1"),
        (("window", "--device", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused(twophase, tiny_folder, words, said):  # noqa: F811
    exit_code, out, err = twophase("bench", *words, "--model", tiny_folder)
    assert (exit_code, out) == (2, "")
    assert said in err


def test_text_has_a_row_for_each_way():
    cases = Case("a case", {"one way": {"seconds": 1.5, "blocks": 12345}, "another": {"seconds": None, "blocks": 3}})
    lines = Report("x", "folder", (cases,), record_machine()).to_text().splitlines()
    assert lines[0] == "a case"
    assert [line.split() for line in lines[1:4]] == [
        ["seconds", "blocks"],
        ["one", "way", "1.5", "12,345"],
        ["another", "3"],
    ]
