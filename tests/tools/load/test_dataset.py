"""Datasets: ShareGPT's conversations and rows; what is wrong in them is told with file, line and reason."""

import json

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.load.dataset import read_dataset
from twophase_tools.load.replay import TraceFileError
from twophase_tools.load.workloads import FixedWorkload, Load, TimedRequest, in_bursts


def encode(text):
    """A token per character."""
    return [ord(character) for character in text]


def said(who, text):
    return {"from": who, "value": text}


def written(tmp_path, rows, name="data.jsonl"):
    path = tmp_path / name
    text = json.dumps(rows, indent=1) if name.endswith(".json") else "\n".join(json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


ROWS = [
    {
        "id": "x",
        "conversations": [said("system", "be brief"), said("human", "hé"), said("gpt", "hello"), said("human", "?")],
    },
    {"prompt": "abc", "output_len": 4},
    {"prompt": [5, 6], "output_tokens": 2, "request_id": "mine"},
    {"prompt_tokens": 9, "output_tokens": 3},
]
REQUESTS = [
    TimedRequest("line-1", 0.0, 2, 5, prompt_token_ids=(104, 233)),
    TimedRequest("line-2", 0.0, 3, 4, prompt_token_ids=(97, 98, 99)),
    TimedRequest("mine", 0.0, 2, 2, prompt_token_ids=(5, 6)),
    TimedRequest("line-4", 0.0, 9, 3),
]


def test_all_kinds_of_rows(tmp_path):
    workload = read_dataset(written(tmp_path, ROWS), encode)
    assert workload.name == "data.jsonl"
    assert list(workload) == REQUESTS
    listed = read_dataset(written(tmp_path, ROWS, "data.json"), encode)
    assert [(r.num_prompt_tokens, r.num_output_tokens, r.prompt_token_ids) for r in listed] == [
        (r.num_prompt_tokens, r.num_output_tokens, r.prompt_token_ids) for r in REQUESTS
    ]


def test_as_many_as_asked_for_and_as_fast(tmp_path):
    few = list(read_dataset(written(tmp_path, ROWS), encode, Load(num_requests=2, rate_per_s=10, seed=1)))
    assert [request.num_prompt_tokens for request in few] == [2, 3]
    assert few[0].arrival_s < few[1].arrival_s
    again = list(read_dataset(written(tmp_path, ROWS), encode, Load(num_requests=2, rate_per_s=10, seed=1)))
    assert few == again
    assert list(read_dataset(written(tmp_path, ROWS), encode, Load(rate_per_s=10, seed=2)))[1] != few[1]


def test_rows_may_say_when(tmp_path):
    rows = [{"prompt": "a", "output_len": 1, "arrival_s": time_s} for time_s in (0, 0.5, 0.5)]
    path = written(tmp_path, rows)
    assert [request.arrival_s for request in read_dataset(path, encode)] == [0, 0.5, 0.5]
    with pytest.raises(TraceFileError, match=r"line 1: arrival_s=0 says when requests come, so no rate"):
        read_dataset(path, encode, Load(rate_per_s=2))


GOOD = {"prompt": "a", "output_len": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "must have 'conversations'"),
        ([], r"must have 'conversations'.*: \[\]"),
        ({"prompt": "a"}, "must have .* got 'prompt'"),
        ({"output_len": 3}, "must have"),
        ({"prompt": "a", "output_len": 1, "output_tokens": 1}, "must have"),
        ({"prompt": "", "output_len": 1}, "prompt='' must be text of at least one token"),
        ({"prompt": [], "output_len": 1}, "prompt=.* must be text or a list of token ids"),
        ({"prompt": [1, -1], "output_len": 1}, "must be text or a list of token ids"),
        ({"prompt": [True], "output_len": 1}, "must be text or a list of token ids"),
        ({"prompt": 3, "output_len": 1}, "must be text or a list of token ids"),
        ({"prompt": "a", "output_len": 0}, "output_len=0 must be in"),
        ({"prompt": "a", "output_len": "many"}, "output_len='many' must be a whole number"),
        ({"prompt_tokens": 0, "output_tokens": 1}, "prompt_tokens=0 must be in"),
        ({"conversations": "hello"}, "must be a list"),
        ({"conversations": ["hello"]}, "must be a list"),
        ({"conversations": []}, "no turn of 'human' that 'gpt' answers"),
        ({"conversations": [said("gpt", "a"), said("human", "b")]}, "no turn of 'human' that 'gpt' answers"),
        ({"conversations": [said("human", "a"), said("gpt", "")]}, "a turn without text"),
        ({"conversations": [said("human", None), said("gpt", "b")]}, "a turn without text"),
        (GOOD | {"arrival_s": 1.0}, r"arrival_s=1\.0 must be in all rows or in none"),
        (GOOD | {"request_id": []}, "request_id=.* must be text"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "data.json"])
def test_a_bad_row_is_named(tmp_path, row, message, name):
    path = written(tmp_path, [GOOD, row], name)
    with pytest.raises(TraceFileError, match=message) as raised:
        read_dataset(path, encode)
    line = 2 if name.endswith("l") else path.read_text().splitlines().index(" },") + 2
    assert raised.value.line == line
    assert str(raised.value).startswith(f"{path}, line {line}")
    read_dataset(path, encode, Load(num_requests=1))  # what is not asked for is not read


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "", r"must end in \.json or \.jsonl"),
        ("x.jsonl", "", "has no rows"),
        ("x.json", "[]", "has no rows"),
        ("x.json", "[\n ]", "has no rows"),
        ("x.jsonl", "\n\n{oops", "line 3 is not JSON"),
        ("x.json", "", "line 1 must be followed by '\\['"),
        ("x.json", "{}", "line 1 must be followed by '\\['"),
        ("x.json", '[\n{"prompt": "a", "output_len": 1}\n', "line 2 must be followed by ',' or '\\]'"),
        ("x.json", '[\n{"prompt": "a", "output_len": 1},\n\n{"prompt"}]', "line 4 is not JSON"),
        ("x.jsonl", '{"prompt": "\\ud800", "output_len": 1}', "prompt=.* is not UTF-8 text"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceFileError, match=message):
        read_dataset(path, lambda text: list(text.encode("utf-8")))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TraceFileError, match="no such file"):
        read_dataset(tmp_path / "x.json", encode)


def test_bursts_come_together_at_the_same_rate():
    requests = tuple(TimedRequest(str(i), float(i), 1, 1) for i in range(7))
    burst = in_bursts(FixedWorkload("steady", requests, 0.5), 3)
    assert [request.arrival_s for request in burst] == [0, 0, 0, 3, 3, 3, 6]
    assert [request.request_id for request in burst] == list("0123456")
    assert (burst.name, burst.pool_share) == ("steady in bursts of 3", 0.5)
    with pytest.raises(ConfigError, match="burst"):
        in_bursts(burst, 0)
