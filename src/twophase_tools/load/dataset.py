"""Prompts from a file: conversations as ShareGPT has them, or rows with a prompt or its length.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
    {"prompt": "...", "output_len": 44}
    {"prompt_tokens": 374, "output_tokens": 44, "arrival_s": 0.5}

A .json file is a list of such objects, a .jsonl file has one a line. Of a conversation the first turn of 'human' that
'gpt' answers is the prompt, and the answer's tokens are how many are generated. A prompt may also be a list of token
ids, `output_len` and `output_tokens` are one thing, `arrival_s` is in all rows or in none, and `request_id` may be
there. Other keys are ignored.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from twophase_tools.load.arrivals import AtOnce
from twophase_tools.load.replay import (
    ARRIVAL,
    OUTPUT,
    PROMPT,
    REQUEST_ID,
    Line,
    TraceFileError,
    arrival_of,
    count_of,
    id_of,
    lines_of,
    shown,
)
from twophase_tools.load.workloads import FixedWorkload, Load, TimedRequest

FORMATS = (".json", ".jsonl")
OUTPUT_NAMES = ("output_len", OUTPUT)
RULE = "must have 'conversations', or 'prompt' or 'prompt_tokens' with 'output_len' or 'output_tokens'"

Encode = Callable[[str], list[int]]


def read_dataset(path: Path | str, encode: Encode, load: Load | None = None) -> FixedWorkload:
    """The file as a workload.

    Args:
        encode: Text to token ids, of the model that is asked.
        load: How many of the rows, the first ones, and how fast: all at once without a rate, unless the rows say when.

    Raises:
        TraceFileError: Anything is wrong anywhere in the rows that are read; names file, line and reason.
        ConfigError: A load that cannot be.
    """
    path, load = Path(path), load or Load()
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise TraceFileError(path, None, None, None, f"a dataset must end in {' or '.join(FORMATS)}.")
    if not path.is_file():
        raise TraceFileError(path, None, None, None, "there is no such file.")
    rows = _listed_rows(path) if suffix == ".json" else _line_rows(path)
    arrivals = AtOnce() if load.rate_per_s is None and load.cv is None else load.arrivals(1.0)
    times_s = arrivals.times_s(random.Random(f"{load.seed} arrivals"))
    requests: list[TimedRequest] = []
    given_ids: set[str] = set()
    says_when: bool | None = None
    for line, row in islice(rows, load.num_requests):
        if says_when is None:
            says_when = row.get(ARRIVAL) is not None
            if says_when and (load.rate_per_s is not None or load.cv is not None):
                raise line.refuse("says when requests come, so no rate and no cv can be given.", ARRIVAL, row[ARRIVAL])
        if says_when != (row.get(ARRIVAL) is not None):
            raise line.refuse("must be in all rows or in none.", ARRIVAL, row.get(ARRIVAL))
        before_s = requests[-1].arrival_s if requests else 0.0
        arrival_s = arrival_of(line, row[ARRIVAL], before_s) if says_when else next(times_s)
        requests.append(_request(line, row, id_of(line, row.get(REQUEST_ID), given_ids), arrival_s, encode))
    if not requests:
        raise TraceFileError(path, None, None, None, "the dataset has no rows.")
    return FixedWorkload(path.name, tuple(requests))


def _request(
    line: Line, row: Mapping[str, Any], request_id: str, arrival_s: float | int, encode: Encode
) -> TimedRequest:
    token_ids = None
    if "conversations" in row:
        prompt, answer = _first_exchange(line, row["conversations"])
        token_ids = _encoded(line, "conversations", prompt, encode)
        num_output_tokens = len(_encoded(line, "conversations", answer, encode))
    else:
        num_output_tokens = _num_output_tokens(line, row)
        if "prompt" in row:
            token_ids = _prompt(line, row["prompt"], encode)
        elif row.get(PROMPT) is None:
            raise line.refuse(f"{RULE}.")
    num_prompt_tokens = count_of(line, PROMPT, row[PROMPT]) if token_ids is None else len(token_ids)
    return TimedRequest(request_id, arrival_s, num_prompt_tokens, num_output_tokens, prompt_token_ids=token_ids)


def _first_exchange(line: Line, turns: Any) -> tuple[str, str]:
    """What 'human' said first that 'gpt' answered, and the answer."""
    field = "conversations"
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise line.refuse("must be a list of {'from': ..., 'value': ...}.", field, turns)
    for asked, answered in pairwise(turns):
        if (asked.get("from"), answered.get("from")) == ("human", "gpt"):
            for turn in (asked, answered):
                if not isinstance(turn.get("value"), str) or not turn["value"]:
                    raise line.refuse("has a turn without text.", field, turn)
            return asked["value"], answered["value"]
    raise line.refuse("has no turn of 'human' that 'gpt' answers.", field, turns)


def _num_output_tokens(line: Line, row: Mapping[str, Any]) -> int:
    given = [name for name in OUTPUT_NAMES if row.get(name) is not None]
    if len(given) != 1:
        raise line.refuse(f"{RULE}; got {', '.join(map(repr, row)) or 'nothing'}.")
    return count_of(line, given[0], row[given[0]])


def _prompt(line: Line, prompt: Any, encode: Encode) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return _encoded(line, "prompt", prompt, encode)
    is_ids = isinstance(prompt, list) and all(type(each) is int and each >= 0 for each in prompt)
    if not is_ids or not prompt:
        raise line.refuse("must be text or a list of token ids, and not empty.", "prompt", prompt)
    return tuple(prompt)


def _encoded(line: Line, field: str, text: str, encode: Encode) -> tuple[int, ...]:
    try:
        token_ids = tuple(encode(text))
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can write
        raise line.refuse(f"is not UTF-8 text ({error.reason}).", field, text) from error
    if not token_ids:
        raise line.refuse("must be text of at least one token.", field, text)
    return token_ids


def _line_rows(path: Path) -> Iterator[tuple[Line, Mapping[str, Any]]]:
    for line, text in lines_of(path):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise line.refuse(f"is not JSON ({error}): {shown(text)}") from error
        yield line, _object(line, row)


def _listed_rows(path: Path) -> Iterator[tuple[Line, Mapping[str, Any]]]:
    """Each element of a list with the line that it starts in."""
    text = "\n".join(text for _, text in lines_of(path, with_blank=True))
    decode = json.JSONDecoder().raw_decode
    end = _skip_blanks(text, 0)
    _expect(Line(path, 1 + text.count("\n", 0, end)), "[", text, end)
    if text[_skip_blanks(text, end + 1) :].startswith("]"):
        return
    number, counted = 1, 0
    while not text.startswith("]", end):
        start = _skip_blanks(text, end + 1)  # behind the bracket or the comma
        number, counted = number + text.count("\n", counted, start), start
        line = Line(path, number)
        try:
            row, end = decode(text, start)
        except (ValueError, RecursionError) as error:
            raise line.refuse(f"is not JSON ({error}): {shown(text[start : start + 80])}") from error
        yield line, _object(line, row)
        end = _skip_blanks(text, end)
        _expect(line, ",]", text, end)


def _expect(line: Line, characters: str, text: str, start: int) -> None:
    if start >= len(text) or text[start] not in characters:
        found = shown(text[start : start + 80])
        either = " or ".join(map(repr, characters))
        raise line.refuse(f"must be followed by {either}: a .json file is one list of objects; got {found}")


def _skip_blanks(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def _object(line: Line, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise line.refuse(f"{RULE}: {shown(row)}")
    return row
