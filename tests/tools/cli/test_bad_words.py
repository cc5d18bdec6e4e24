"""A command that cannot be done ends with exit status 2 and a line that says why, never with a traceback."""

import subprocess
import sys

import pytest

from tests.tools.cli.conftest import child_environment


def test_files_and_words_in_another_encoding(twophase, tiny_folder, tmp_path):
    binary = tmp_path / "schema.json"
    binary.write_bytes(b"\xff\xfe\x00{}")
    for words, said in [
        (("--json-schema", binary), "file of UTF-8 text"),
        (("--json-schema", tmp_path), "can be read"),
        (("--json-schema", tmp_path / "nowhere"), "can be read"),
        (("--regex", "\udcff"), "must be UTF-8 text"),
        (("--stop", "\udcff"), "must be UTF-8 text"),
    ]:
        code, out, err = twophase("generate", "x", "--model", tiny_folder, *words)
        assert (code, out) == (2, ""), words
        assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench speculative --repeats 0", "--repeats: must be at least 1"),
        ("bench prefix-caching --repeats -1", "--repeats: must be at least 1"),
        ("bench engine --repeats 1.5", "must be a whole number"),
        ("bench engine --threads 0", "--threads: must be at least 1"),
        ("bench serve --num-kv-blocks 10000000000000", "must be at most"),
        ("bench serve --cv 1e200", "must be in"),
        ("bench serve --policy static:batch_size=nan", "must be a whole number"),
        ("bench serve --policy prefill-first:max_stalled_steps=2.5", "must be a whole number"),
        ("simulate --hardware h100 --replicas 1000000000", "must be at most"),
    ],
)
def test_numbers(twophase, words, said):
    code, out, err = twophase(*words.split())
    assert (code, out) == (2, "")
    assert said in err


def shell(script, folder, **environment):
    """The command with streams that only a shell can arrange; `$T` is the command, `$M` the model."""
    names = {"T": f"{sys.executable} -m twophase_tools", "M": str(folder)}
    return subprocess.run(
        ["sh", "-c", script], env=child_environment(**names, **environment), capture_output=True, timeout=120
    )


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("$T generate - --model $M <&-", 2, b"standard input is closed"),
        ("$T generate x --model $M >&-", 2, b"standard output is closed"),
        ("printf '\\377\\376' | PYTHONIOENCODING=utf-8 $T generate - --model $M", 2, b"must be UTF-8 text"),
        ("$T plan --example >/dev/full", 1, b"No space left"),
    ],
)
def test_streams(script, code, said, tiny_folder):
    done = shell(script, tiny_folder)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr.decode()


def test_an_ascii_terminal_shows_escapes(tiny_folder):
    """The prompt is not ASCII, nor is what comes of it."""
    script = "$T generate x --choice 'naïve' --model $M --max-tokens 40"
    done = shell(script, tiny_folder, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr.decode()
    assert b"na\\xefve" in done.stdout


def test_without_standard_error_nothing_goes_astray(tiny_folder):
    done = shell("$T generate '' --model nowhere 2>&-", tiny_folder)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")
