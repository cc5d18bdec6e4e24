"""Every mistake in a file is named, with its line and the likely fix; never a traceback."""

import random

import pytest

from tests.model.tiny import make_folder
from tests.tools.capacity.plans import BASE, plan, text
from twophase.core.errors import ConfigError
from twophase_tools.capacity.config import EXAMPLE, KEYS, parse_config, read_config
from twophase_tools.capacity.units import bytes_of, in_both
from twophase_tools.simulate.cost_model import Assumptions

# BASE has model, hardware, max_model_len and workload in lines 1 to 4; what is added starts in line 5.
MISTAKES = [
    # unknown, missing and repeated keys
    ({"max_num_seq": 8}, 5, "unknown key max_num_seq; did you mean max_num_seqs?"),
    ({"Model": "x"}, 5, "unknown key Model; did you mean model?"),
    ({"tensor_parallel": 8}, 5, "did you mean tensor_parallel_size?"),
    ({"qqq": 8}, 5, "unknown key qqq; known are model, dtype,"),
    ({"workload": "{rates: 1, rate: 1, prompt_tokens: 9, output_tokens: 9}"}, 4, "unknown key workload.rates; did you mean rate?"),
    ({"model": None}, 1, "model is missing"),
    ({"enable_expert_parallel": "yes"}, 5, "enable_expert_parallel must be one of true, false, got yes"),
    ({"enable_expert_parallel": "true"}, 5, "enable_expert_parallel shares out experts, and Llama-3-8B has none"),
    ({"workload": "{rate: 1, prompt_tokens: 1}"}, 4, "workload.output_tokens is missing"),
    ({"slo": "\n  ttft_s: 1\n  ttft_s: 2"}, 7, "slo.ttft_s stands here a second time, first in line 6; remove one."),
    ({"[1, 2]": 3}, 5, "a key must be a word"),
    # wrong types
    ({"workload": "fast"}, 4, "workload must be a mapping with rate, prompt_tokens, output_tokens on lines of their own, got 'fast'"),
    ({"workload": "[1, 2]"}, 4, "got a list"),
    ({"model": "[llama-3-8b]"}, 1, "model must be a single value, got a list"),
    ({"model": "{name: x}"}, 1, "model must be a single value, got a mapping"),
    ({"model": ""}, 1, "model has no value; give one, or remove the line"),
    ({"slo": ""}, 5, "slo has no value"),
    ({"block_size": "!!python/name:os.system x"}, 5, "block_size has a tag, python/name:os.system"),
    ({"block_size": "!mine {}"}, 5, "has a tag, !mine"),
    # whole numbers
    ({"max_num_seqs": "many"}, 5, "max_num_seqs must be a whole number of at least 1, got many."),
    ({"max_num_seqs": 0}, 5, "max_num_seqs must be a whole number of at least 1, got 0."),
    ({"max_num_seqs": -3}, 5, "got -3"),
    ({"max_num_seqs": "yes"}, 5, "got yes"),
    ({"max_num_seqs": '"64"'}, 5, 'got "64"; write 64.'),
    ({"max_num_seqs": "1e2"}, 5, "got 1e2; write 100."),
    ({"max_num_seqs": "1,024"}, 5, "got 1,024; write 1024."),
    ({"max_num_seqs": 64.5}, 5, "got 64.5."),
    ({"max_num_seqs": "1e999"}, 5, "got 1e999."),
    ({"max_num_seqs": "010"}, 5, "got 010; write 10."),
    ({"max_num_seqs": "12:30"}, 5, "got 12:30."),
    ({"max_num_seqs": "٣"}, 5, "whole number"),
    ({"max_num_seqs": 10**12}, 5, "must be at most 1,000,000,000"),
    ({"max_num_seqs": "9" * 5000}, 5, "whole number"),
    ({"max_model_len": 1}, 3, "max_model_len must be a whole number of at least 2, got 1."),
    ({"tensor_parallel_size": 5000}, 5, "must be at most 4,096"),
    ({"block_size": 24}, 5, "block_size must be a power of two, because kernels tile pages so, got 24; try 16."),
    # other numbers
    ({"workload": "{rate: 0, prompt_tokens: 9, output_tokens: 9}"}, 4, "workload.rate must be a number above 0, got 0."),
    ({"workload": "{rate: .nan, prompt_tokens: 9, output_tokens: 9}"}, 4, "got .nan"),
    ({"workload": "{rate: 1e10, prompt_tokens: 9, output_tokens: 9}"}, 4, "must be at most 1e+09"),
    ({"slo": "{ttft_s: 200ms}"}, 5, "slo.ttft_s must be a number above 0, got 200ms."),
    ({"slo": "{}"}, 5, "slo promises nothing; give ttft_s, tpot_s or both"),
    ({"gpu_memory_utilization": 90}, 5, "must be a share in (0, 1], got 90; write 0.9 for 90 %."),
    ({"gpu_memory_utilization": "90%"}, 5, "got 90%; write 0.9."),
    ({"gpu_memory_utilization": 0}, 5, "must be a number above 0"),
    ({"gpu_memory_utilization": 200}, 5, "must be a share in (0, 1], got 200."),
    ({"assumptions": "{compute_efficiency: 1.5}"}, 5, "assumptions.compute_efficiency must be a share"),
    ({"assumptions": "{schedule_s: -1}"}, 5, "must be a number of at least 0, got -1."),
    # sizes
    ({"workspace": "1 gb"}, 5, "workspace has no unit 'gb'; write 1 GB (powers of ten) or 1 GiB (powers of two)."),
    ({"workspace": "512M"}, 5, "write 512 MB (powers of ten) or 512 MiB"),
    ({"workspace": "5 apples"}, 5, "has no unit 'apples'; units are B, kB, MB,"),
    ({"workspace": "lots"}, 5, "workspace must be a size such as 80 GB or 74.5 GiB, got lots."),
    ({"workspace": "-1 GB"}, 5, "must be a size"),
    # words
    ({"dtype": "bf16"}, 5, "dtype must be one of bfloat16, float16, float32, got bf16; did you mean bfloat16?"),
    ({"kv_cache_dtype": "fp8"}, 5, "did you mean fp8_e4m3?"),
    ({"hardware": "h1000"}, 2, "hardware must be one of a100, h100, h200, mi300x, got h1000; did you mean h100?"),
    ({"eviction": "window"}, 5, "eviction must be one of auto, none, got window"),
    ({"eviction": "{sinks: 4}"}, 5, "eviction.window is missing"),
    ({"eviction": "{window: 0}"}, 5, "eviction.window must be a whole number of at least 1"),
    ({"hardware": "{memory: 80 GB, flops_per_s: 1e15}"}, 2, "hardware.bytes_per_s is missing"),
    ({"hardware": "{memory: 80 GB, flops_per_s: 1e15, bytes_per_s: 0}"}, 2, "hardware.bytes_per_s must be a number of at least 1"),
    ({"hardware": "{memory: 80 GB, flops_per_s: 1e15, bytes_per_s: 1e12}", "tensor_parallel_size": 2}, 2, "hardware needs link_bytes_per_s"),
    # the model
    ({"model": "lama-3-8b"}, 1, "there is no folder lama-3-8b; did you mean llama-3-8b?"),
    ({"model": "meta-llama/Meta-Llama-3-8B"}, 1, "a folder with a config.json"),
    ({"model": "."}, 1, "model cannot be read"),
    ({"model": '"a\\0b"'}, 1, "model"),
    # what no engine runs
    ({"max_num_batched_tokens": 100}, 5, "max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in every step, got 100 < 256"),
    ({"max_num_seqs": 9000}, 5, "got 8,192 < 9,000; raise one or lower the other."),
    ({"max_model_len": 1249}, 4, "workload has a mean request of 1,000 + 250 tokens, which max_model_len 1,249 refuses; raise it to 1,250 at least"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line", "complaint"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_named(changes, line, complaint):
    with pytest.raises(ConfigError) as caught:
        parse_config(text(**changes), "a.yaml")
    message = str(caught.value)
    assert message.startswith(f"a.yaml:{line}: ")
    assert complaint in message
    assert "\n" not in message


BROKEN = [
    ("", 1, "the file is empty; `twophase plan --example`"),
    ("# nothing\n\n", 1, "the file is empty"),
    ("model: a\n\thardware: b\n", 2, "a tab; YAML is indented with spaces."),
    ("workload:\n\trate: 1\n", 2, "a tab"),
    ("model: [1\n", 2, "no YAML: expected ',' or ']'"),
    ("a: b: c\n", 1, "mapping values are not allowed here; is it indented as the lines around it?"),
    ("model: a\n  hardware: b\n", 2, "mapping values are not allowed"),
    ("model:llama-3-8b\n", 1, "is there a space after each colon?"),
    ("- model\n", 1, "must be lines of `key: value`"),
    ("a: 1\n---\nb: 2\n", 2, "another document"),
    ("a: 1\nb: \x00\n", 2, "character #x00 cannot stand in YAML"),
    ("a: *nobody\n", 1, "undefined alias"),
    ("@a: 1\n", 1, "no YAML"),
    ("a: " + "[" * 3000, 1, "brackets"),
    ("a: 'b\n", 2, "no YAML"),
]


@pytest.mark.parametrize(("source", "line", "complaint"), BROKEN, ids=lambda value: str(value)[:20])
def test_what_is_no_yaml(source, line, complaint):
    with pytest.raises(ConfigError) as caught:
        parse_config(source, "a.yaml")
    assert str(caught.value).startswith(f"a.yaml:{line}: ")
    assert complaint in str(caught.value)


def test_all_mistakes_at_once_in_the_order_of_lines():
    with pytest.raises(ConfigError) as caught:
        parse_config(text(dtype="bf16", hardware="z80", max_num_seq=4), "a.yaml")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["a.yaml:2:", "a.yaml:5:", "a.yaml:6:"]


def test_positions_of_the_model(tiny_folder):
    with pytest.raises(ConfigError, match=r"a.yaml:3: max_model_len must not exceed the model's \d+ positions"):
        parse_config(text(model=tiny_folder, max_model_len=10**8), "a.yaml")


def test_experts_that_gpus_cannot_share_evenly(tmp_path):
    make_folder("mixtral", tmp_path, num_key_value_heads=6)
    options = {"model": tmp_path, "max_model_len": 64, "workload": "{rate: 1, prompt_tokens: 8, output_tokens: 8}"}
    with pytest.raises(ConfigError, match=r"enable_expert_parallel gives each GPU as many .* 3 cannot share 4 evenly"):
        parse_config(text(**options, tensor_parallel_size=3, enable_expert_parallel="true"))
    assert parse_config(text(**options, tensor_parallel_size=2, enable_expert_parallel="true")).enable_expert_parallel
    pools = "{prefill: {tensor_parallel_size: 2}, decode: {tensor_parallel_size: 3}, link_bytes_per_s: 1e9}"
    with pytest.raises(ConfigError, match=r"pools.decode.tensor_parallel_size gives each .* 3 cannot share 4 evenly"):
        parse_config(text(**options, enable_expert_parallel="true", pools=pools))


def test_rows_that_kernels_cannot_load(tmp_path):
    from tests.model.tiny import make_folder

    odd, _ = make_folder("llama", tmp_path)
    changes = {"model": odd, "max_model_len": 64, "workload": "{rate: 1, prompt_tokens: 8, output_tokens: 8}"}
    parse_config(text(**changes))
    with pytest.raises(ConfigError, match=r"a.yaml:5: kv_cache_dtype int8 makes rows of 8 values 8 bytes long"):
        parse_config(text(**changes, kv_cache_dtype="int8"), "a.yaml")


def test_files(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; `twophase plan --example` prints one"):
        read_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9")
    with pytest.raises(ConfigError, match=r"no UTF-8 text .byte 7."):
        read_config(tmp_path / "latin.yaml")
    # As some editors save it: a byte-order mark, and lines that end in CR LF.
    (tmp_path / "windows.yaml").write_bytes(b"\xef\xbb\xbf" + text().replace("\n", "\r\n").encode())
    assert read_config(tmp_path / "windows.yaml").max_model_len == 4096


def test_the_example_shows_every_key_and_default():
    source = EXAMPLE.read_text(encoding="utf-8")
    names = [*KEYS, *(f"  {name}" for key in KEYS.values() if key.keys for name in key.keys)]
    assert [name for name in names if f"{name}:" not in source] == []
    config = read_config(EXAMPLE)
    assert config.assumptions == Assumptions()
    # Commented defaults are the defaults: the example with them taken away and put in means the same.
    bare = "\n".join(line for line in source.splitlines() if not line.startswith("#"))
    lines = [line.removeprefix("# ").split("  #")[0] for line in source.splitlines() if line.startswith("# ")]
    flat = [
        line
        for line in lines
        if line.split(":")[0]
        in ("tensor_parallel_size", "dtype", "kv_cache_dtype", "gpu_memory_utilization", "block_size")
    ]
    assert len(flat) == 5
    assumed = lines[lines.index(next(line for line in lines if line.startswith("assumptions"))) :]
    given = parse_config("\n".join([bare, *flat, *assumed]))
    assert vars_of(given) == vars_of(parse_config(bare))


def vars_of(config):
    return {name: getattr(config, name) for name in config.__slots__ if name not in ("lines", "name")}


def test_sizes():
    sizes = ["80 GB", "80GiB", "1.5 kB", "7", "0.1 B", "3 TiB", "2 MB", "2 MiB"]
    expected = [80 * 10**9, 80 * 2**30, 1500, 7, 0, 3 * 2**40, 2 * 10**6, 2**21]
    assert [bytes_of(size) for size in sizes] == expected
    assert in_both(16 * 2**30) == "17.18 GB (16.00 GiB)"


def test_aliases_are_values():
    config = plan(workload="{rate: 1, prompt_tokens: &n 10, output_tokens: *n}").config
    assert config.workload.num_tokens == 20


@pytest.mark.parametrize("seed", range(60))
def test_torn_files_never_break_it(seed):
    """Bytes removed, repeated and replaced: a plan, or complaints that begin with the file's name."""
    rng = random.Random(seed)
    source = EXAMPLE.read_text(encoding="utf-8") if seed % 2 else text()
    for _ in range(30):
        torn = list(source)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(torn))
            torn[place : place + rng.choice([0, 1, 5])] = rng.choice(
                ["", "\t", ":", "[", "{", "-", "'", "9", "\n", "&", "*", "!", "%", "\x07", "é", " "]
            )
        assert all(line.startswith("a.yaml:") for line in complaints("".join(torn)))


def complaints(source):
    try:
        parse_config(source, "a.yaml")
    except ConfigError as error:
        return str(error).splitlines()
    return []


def test_base_is_fine():
    assert list(BASE) == ["model", "hardware", "max_model_len", "workload"]
    assert plan().config.lines["workload.rate"] == 4
