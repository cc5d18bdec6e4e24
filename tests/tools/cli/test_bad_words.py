"""A command that cannot be done ends with exit status 2 and a line that says why, never with a traceback."""

import subprocess
import sys

import pytest

from tests.tools.conftest import child_environment


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


SIMULATE = "simulate --hardware h100"
SERVE, PROFILE = (
    "bench serve --device cpu --model {model}",
    "profile --device cpu --model {model} --output {tmp}/x.json",
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench speculative --repeats 0", "--repeats: must be at least 1"),
        ("bench window --device nowhere --model {model}", "nowhere"),
        ("bench engine --repeats 1.5", "must be a whole number"),
        ("bench engine --threads 0", "--threads: must be at least 1"),
        ("bench engine --vllm-python /no/python", "--vllm-python must be a file that can be run"),
        ("bench engine --weights fp32,int3", "got int3"),
        ("bench engine --weights fp32 --dtype bfloat16", "--dtype bfloat16 cannot be given"),
        ("bench kernels --dry-run --results .", "a dry run measures nothing"),
        ("bench kernels --dry-run --quick", "a dry run measures nothing"),
        (f"{SERVE} --num-kv-blocks 10000000000000", "must be at most"),
        (f"{SERVE} --num-kv-blocks 0", "num_kv_blocks"),
        (f"{SERVE} --cv 1e200", "cv must be"),
        (f"{SERVE} --cv inf", "cv must be"),
        (f"{SERVE} --policy static:batch_size=nan", "must be a whole number"),
        (f"{SERVE} --policy prefill-first:max_stalled_steps=2.5", "must be a whole number"),
        (f"{SERVE} --workload nonsense", "'nonsense'"),
        (f"{SERVE} --rate 0", "rate_per_s must be"),
        (f"{SERVE} --requests -1", "--requests: must be at least 1"),
        (f"{SERVE} --slo-ttft 0", "ttft_s"),
        (f"{SERVE} --duration-limit 0", "duration limit"),
        (f"{SERVE} --concurrency 0", "--concurrency: must be at least 1"),
        ("bench serve --url nonsense", "--url must be a URL"),
        ("bench serve --url http://127.0.0.1:9 --dtype float32 --max-num-seqs 3", "--dtype and --max-num-seqs"),
        (f"{SERVE} --api-key k", "--api-key can be given only with --url"),
        (f"{PROFILE} --step nonsense", "'nonsense'"),
        (f"{PROFILE} --batch 0", "--batch"),
        (f"{PROFILE} --step mixed --batch 1", "at least 2 requests"),
        (f"{PROFILE} --prompt-lens 100000", "100000"),
        (f"{PROFILE} --output x.txt", ".json.gz"),
        (f"{PROFILE} --output no/such/folder/x.json", "--output"),
        (f"{PROFILE} --steps 0", "--steps"),
        ("simulate --hardware z80", "a100, h100, h200, mi300x"),
        (f"{SIMULATE} --replicas 1000000000", "must be at most"),
        (f"{SIMULATE} --model nobody's", "llama-3-70b"),
        (f"{SIMULATE} --model llama-3-70b", "--tensor-parallel"),
        (f"{SIMULATE} --tensor-parallel 3", "key/value heads"),
        (f"{SIMULATE} --router x", "least-outstanding"),
        (f"{SIMULATE} --admission reserved", "optimistic, reserve, estimate"),
        (f"{SIMULATE} --num-kv-blocks 2", "KV blocks"),
        (f"{SIMULATE} --workload nothing", "no workload"),
        (f"{SIMULATE} --policy ageing:patience_s=nan", "policy 'ageing': patience_s must be a finite number"),
    ],
)
def test_options_that_cannot_be(twophase, tiny_folder, tmp_path, words, said):
    code, out, err = twophase(*words.format(model=tiny_folder, tmp=tmp_path).split())
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
