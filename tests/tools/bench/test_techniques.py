"""Each technique's benchmark runs from end to end on a small model and shows what it is for; no time is judged."""

import json

import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from tests.tools.conftest import run_cli


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
