"""Trace files: what is read, and what a broken line is told."""

import itertools

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.load import replay
from twophase_tools.load.workloads import Load, named_workload

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def write(tmp_path, text, suffix=".csv"):
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(path):
    return [(r.request_id, r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in replay.read_trace(path)]


def test_csv(tmp_path):
    text = (
        '\ufeffprompt_tokens, model ,arrival_s,output_tokens\r\n374,gpt,0,44\r\n\r\n396,"a,b", 5.1e-1 ,109\r\n1,,.51,2'
    )
    assert rows(write(tmp_path, text)) == [("line-2", 0, 374, 44), ("line-4", 0.51, 396, 109), ("line-5", 0.51, 1, 2)]


def test_jsonl(tmp_path):
    text = (
        '{"arrival_s": 0, "prompt_tokens": 374, "output_tokens": 44, "request_id": "a", "more": {"b": [1]}}\n'
        '\n{"output_tokens": 109, "prompt_tokens": 396, "arrival_s": 5.1e-1, "request_id": 7}'
    )
    assert rows(write(tmp_path, text, ".jsonl")) == [("a", 0, 374, 44), ("7", 0.51, 396, 109)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_what_is_written_is_read(tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    workload = named_workload("bursty", Load(num_requests=50))
    replay.write_trace(path, workload)
    again = replay.replay(path)
    assert again.name == path.name
    assert [(r.request_id, r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in again] == [
        (r.request_id, r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in workload
    ]


BROKEN_CSV = [
    # (name, text, line, field, value, what it is told)
    ("empty", "", None, None, None, "no requests"),
    ("header only", HEADER, None, None, None, "no requests"),
    ("blank lines only", "\n\n", None, None, None, "no requests"),
    ("no header", "0,374,44\n", 1, "arrival_s", None, "first line must name"),
    ("column missing", "arrival_s,prompt_tokens\n0,1\n", 1, "output_tokens", None, "first line must name"),
    ("column twice", "arrival_s,prompt_tokens,output_tokens,arrival_s\n", 1, "arrival_s", None, "2 times"),
    ("negative arrival", HEADER + "-0.5,1,1\n", 2, "arrival_s", "-0.5", "not be negative"),
    ("decreasing arrival", HEADER + "0,1,1\n3,1,1\n2.5,1,1\n", 4, "arrival_s", "2.5", r"line above \(3.0 s\)"),
    ("nan arrival", HEADER + "nan,1,1\n", 2, "arrival_s", "nan", "finite"),
    ("infinite arrival", HEADER + "1e999,1,1\n", 2, "arrival_s", "1e999", "finite"),
    ("arrival in words", HEADER + "soon,1,1\n", 2, "arrival_s", "soon", "number of seconds"),
    ("arrival with underscore", HEADER + "1_0,1,1\n", 2, "arrival_s", "1_0", "number of seconds"),
    ("clock time", HEADER + "1700000000.5,1,1\n", 2, "arrival_s", "1700000000.5", "not from 1970"),
    ("empty arrival", HEADER + ",1,1\n", 2, "arrival_s", None, "missing"),
    ("no prompt", HEADER + "0,0,1\n", 2, "prompt_tokens", "0", r"\[1, "),
    ("negative prompt", HEADER + "0,-3,1\n", 2, "prompt_tokens", "-3", "whole number"),
    ("fraction", HEADER + "0,1.5,1\n", 2, "prompt_tokens", "1.5", "whole number"),
    ("no output", HEADER + "0,1,0\n", 2, "output_tokens", "0", r"\[1, "),
    ("huge output", HEADER + "0,1,99999999999\n", 2, "output_tokens", "99999999999", r"\[1, "),
    ("foreign digits", HEADER + "0,1,١\n", 2, "output_tokens", "١", "whole number"),
    ("field missing", HEADER + "0,1\n", 2, None, None, "2 fields, and the header has 3"),
    ("field too many", HEADER + "0,1,1,1\n", 2, None, None, "4 fields"),
    ("open quote", HEADER + '0,1,"1\n', 2, None, None, "not CSV"),
    ("not text", HEADER.encode() + b"0,\xff\xfe,1\n", 2, None, None, "not UTF-8"),
    ("second line broken", HEADER + "0,1,1\n0,x,1\n", 3, "prompt_tokens", "x", "whole number"),
    ("id twice", "request_id," + HEADER + "a,0,1,1\na,0,1,1\n", 3, "request_id", "a", "needs its own"),
]
GOOD = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n'
BROKEN_JSONL = [
    ("empty", "", None, None, None, "no requests"),
    ("not JSON", GOOD + "{oops}\n", 2, None, None, "not JSON"),
    ("cut off", GOOD + '{"arrival_s": 0, "prom', 2, None, None, "not JSON"),
    ("deep", "[" * 100_000 + "\n", 1, None, None, "not JSON"),
    ("a list", "[0, 1, 1]\n", 1, None, None, "JSON object"),
    ("a number", "3\n", 1, None, None, "JSON object"),
    ("key missing", '{"arrival_s": 0, "prompt_tokens": 1}\n', 1, "output_tokens", None, "missing"),
    ("null", GOOD.replace("0", "null"), 1, "arrival_s", None, "missing"),
    ("key twice", GOOD.replace('{', '{"arrival_s": 9, '), 1, "arrival_s", 0, "more than once"),
    ("NaN", GOOD.replace("0", "NaN"), 1, "arrival_s", float, "finite"),
    ("Infinity", GOOD.replace("0", "Infinity"), 1, "arrival_s", float, "finite"),
    ("hundreds of digits", GOOD.replace("0", "9" * 400), 1, "arrival_s", 10**400 - 1, "finite"),
    ("true", GOOD.replace("0", "true"), 1, "arrival_s", True, "number of seconds"),
    ("a list of seconds", GOOD.replace("0", "[0]"), 1, "arrival_s", list, "number of seconds"),
    ("true tokens", GOOD.replace('"prompt_tokens": 1', '"prompt_tokens": true'), 1, "prompt_tokens", True, "whole number"),
    ("a float of tokens", GOOD.replace('"prompt_tokens": 1', '"prompt_tokens": 1.0'), 1, "prompt_tokens", 1.0, "whole number"),
    ("negative tokens", GOOD.replace('"prompt_tokens": 1', '"prompt_tokens": -1'), 1, "prompt_tokens", -1, r"\[1, "),
    ("decreasing", GOOD.replace("0", "2") + GOOD, 2, "arrival_s", 0, "sort by arrival"),
    ("an id that is a list", GOOD.replace("{", '{"request_id": [1], '), 1, "request_id", list, "text or a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "case"),
    [*((".csv", case) for case in BROKEN_CSV), *((".jsonl", case) for case in BROKEN_JSONL)],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_broken_line_is_named(tmp_path, suffix, case):
    _, text, line, field, value, message = case
    path = write(tmp_path, text, suffix)
    with pytest.raises(replay.TraceFileError, match=message) as caught:
        replay.replay(path)
    error = caught.value
    assert (error.path, error.line, error.field) == (path, line, field)
    assert isinstance(error.value, value) if isinstance(value, type) else error.value == value
    assert isinstance(error, ConfigError)
    assert str(path) in str(error)
    assert line is None or f"line {line}" in str(error)
    assert field is None or field in str(error)
    assert len(str(error)) < 400


def test_lines_before_the_broken_one_are_played(tmp_path):
    path = write(tmp_path, HEADER + "0,1,1\n1,1,1\n-1,1,1\n")
    assert len(list(itertools.islice(replay.read_trace(path), 2))) == 2


@pytest.mark.parametrize(("name", "message"), [("trace.txt", "must end in"), ("nowhere.csv", "no such file")])
def test_files_that_cannot_be(tmp_path, name, message):
    (tmp_path / "trace.txt").write_text(HEADER)
    with pytest.raises(replay.TraceFileError, match=message):
        replay.replay(tmp_path / name)
    if name == "trace.txt":
        with pytest.raises(replay.TraceFileError, match=message):
            replay.write_trace(tmp_path / name, [])
