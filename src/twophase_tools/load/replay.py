"""Traffic traces in files: CSV or JSON lines with arrival, prompt tokens and output tokens.

    arrival_s,prompt_tokens,output_tokens         {"arrival_s": 0, "prompt_tokens": 374, "output_tokens": 44}
    0,374,44                                      {"arrival_s": 0.51, "prompt_tokens": 396, "output_tokens": 109}
    0.51,396,109

A column `request_id` may be there, with different ids; other columns are ignored. Lines are in order of arrival, in
UTF-8.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase_tools.load.workloads import FixedWorkload, TimedRequest

ARRIVAL, PROMPT, OUTPUT, REQUEST_ID = "arrival_s", "prompt_tokens", "output_tokens", "request_id"
REQUIRED = (ARRIVAL, PROMPT, OUTPUT)
FORMATS = (".csv", ".jsonl")
# No trace is a year long, but clock times since 1970 are: nobody wants to wait for those.
LONGEST_S = 366 * 24 * 3600
MOST_TOKENS = 10**7  # of a prompt: longer than any context, and no burden to make up

_WHOLE = re.compile(r"[0-9]{1,18}")
# What float() takes, less its underscores and foreign digits; NaN and infinities get a message of their own.
_DECIMAL = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)


class TraceFileError(ConfigError):
    """A trace file that cannot be played.

    Attributes:
        line: Counted from 1; None where the file as a whole is wrong.
        field: The column or key; None where the line as a whole is wrong.
        value: As it stands in the file.
    """

    def __init__(self, path: Path, line: int | None, field: str | None, value: Any, rule: str) -> None:
        subject = f"{path}:" if line is None else f"{path}, line {line}:" if field else f"{path}, line {line}"
        if field is not None:
            subject += f" {field}" if value is None else f" {field}={shown(value)}"
        super().__init__(f"{subject} {rule}")
        self.path, self.line, self.field, self.value = path, line, field, value


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_trace(path: Path | str) -> Iterator[TimedRequest]:
    """The requests of a trace, read as they are asked for; kept are the ids that it gives, if any.

    Raises:
        TraceFileError: With file, line, field and value, when the line is reached.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise TraceFileError(path, None, None, None, f"a trace file must end in {' or '.join(FORMATS)}.")
    if not path.is_file():
        raise TraceFileError(path, None, None, None, "there is no such file.")
    rows = _csv_rows(path) if suffix == ".csv" else _jsonl_rows(path)
    return _requests(path, rows)


def replay(path: Path | str) -> FixedWorkload:
    """A whole trace as a workload.

    Raises:
        TraceFileError: Anything is wrong anywhere in it.
    """
    return FixedWorkload(Path(path).name, tuple(read_trace(path)))


def write_trace(path: Path | str, requests: Iterable[TimedRequest]) -> None:
    """Write what `read_trace` reads; token ids and shared prefixes are not kept.

    Raises:
        TraceFileError: The name ends in neither .csv nor .jsonl.
    """
    path = Path(path)
    rows = (
        {REQUEST_ID: r.request_id, ARRIVAL: r.arrival_s, PROMPT: r.num_prompt_tokens, OUTPUT: r.num_output_tokens}
        for r in requests
    )
    if path.suffix.lower() not in FORMATS:
        raise TraceFileError(path, None, None, None, f"a trace file must end in {' or '.join(FORMATS)}.")
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            writer = csv.DictWriter(file, (REQUEST_ID, *REQUIRED))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@final
@dataclass(frozen=True, slots=True)
class Line:
    """Where in the file we are."""

    path: Path
    number: int

    def refuse(self, rule: str, field: str | None = None, value: Any = None) -> TraceFileError:
        return TraceFileError(self.path, self.number, field, value, rule)


Row = tuple[Line, Mapping[str, Any]]


def _requests(path: Path, rows: Iterable[Row]) -> Iterator[TimedRequest]:
    before_s = 0.0
    given_ids: set[str] = set()
    line = None
    for line, row in rows:
        for field in REQUIRED:
            if row.get(field) is None:
                raise line.refuse(f"is missing; each line needs {', '.join(REQUIRED)}.", field)
        before_s = arrival_of(line, row[ARRIVAL], before_s)
        yield TimedRequest(
            request_id=id_of(line, row.get(REQUEST_ID), given_ids),
            arrival_s=before_s,
            num_prompt_tokens=count_of(line, PROMPT, row[PROMPT]),
            num_output_tokens=count_of(line, OUTPUT, row[OUTPUT]),
        )
    if line is None:
        raise TraceFileError(path, None, None, None, "the trace has no requests.")


def arrival_of(line: Line, value: Any, before_s: float) -> float:
    arrival_s = _as_float(value)
    if arrival_s is None:
        raise line.refuse("must be a number of seconds.", ARRIVAL, value)
    if not math.isfinite(arrival_s):
        raise line.refuse("must be finite.", ARRIVAL, value)
    if arrival_s < 0:
        raise line.refuse("must not be negative; times count from the start of the trace.", ARRIVAL, value)
    if arrival_s < before_s:
        raise line.refuse(f"must not be before the line above ({before_s} s); sort by arrival.", ARRIVAL, value)
    if arrival_s > LONGEST_S:
        rule = "is more than a year; times count in seconds from the start of the trace, not from 1970."
        raise line.refuse(rule, ARRIVAL, value)
    return arrival_s


def _as_float(value: Any) -> float | None:
    """A JSON number, or a decimal number in a CSV cell; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def count_of(line: Line, field: str, value: Any) -> int:
    is_text = isinstance(value, str) and _WHOLE.fullmatch(value) is not None
    if not is_text and (not isinstance(value, int) or isinstance(value, bool)):
        raise line.refuse("must be a whole number of tokens, at least 1.", field, value)
    if not 1 <= int(value) <= MOST_TOKENS:
        raise line.refuse(f"must be in [1, {MOST_TOKENS}] tokens.", field, value)
    return int(value)


def id_of(line: Line, value: Any, given: set[str]) -> str:
    """The id that is given, else the line's number; `given` collects the former."""
    if value is None or value == "":
        return f"line-{line.number}"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise line.refuse("must be text or a whole number.", REQUEST_ID, value)
    if str(value) in given:
        raise line.refuse("is the id of a line above; each request needs its own.", REQUEST_ID, value)
    given.add(str(value))
    return str(value)


def lines_of(path: Path, with_blank: bool = False) -> Iterator[tuple[Line, str]]:
    """The lines, by default those that are not blank, decoded one by one so that a broken one can be named."""
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            line = Line(path, number)
            try:
                text = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise line.refuse(f"is not UTF-8 text ({error.reason}).") from error
            if with_blank or text.strip():
                yield line, text


def _csv_rows(path: Path) -> Iterator[Row]:
    header: list[str] | None = None
    for line, text in lines_of(path):
        try:
            # Line by line: a quote left open is an error of its line, not of the rest of the file.
            (cells,) = csv.reader([text], strict=True)
        except csv.Error as error:
            raise line.refuse(f"is not CSV ({error}): {shown(text)}") from error
        cells = [cell.strip() for cell in cells]
        if header is None:
            header = _header(line, cells)
        elif len(cells) != len(header):
            raise line.refuse(f"has {len(cells)} fields, and the header has {len(header)}: {shown(text)}")
        else:
            yield line, {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _header(line: Line, cells: list[str]) -> list[str]:
    for field in REQUIRED:
        if field not in cells:
            rule = f"is no column; the first line must name {', '.join(REQUIRED)}, got {', '.join(cells)}."
            raise line.refuse(rule, field)
    for field in (*REQUIRED, REQUEST_ID):
        if cells.count(field) > 1:
            raise line.refuse(f"stands {cells.count(field)} times in the header.", field)
    return cells


def _jsonl_rows(path: Path) -> Iterator[Row]:
    for line, text in lines_of(path):
        try:
            pairs = json.loads(text, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise line.refuse(f"is not JSON ({error}): {shown(text)}") from error
        if not isinstance(pairs, _Pairs):
            raise line.refuse(f"must be a JSON object with {', '.join(REQUIRED)}: {shown(text)}")
        row = dict(pairs)
        for field in (*REQUIRED, REQUEST_ID):
            if sum(name == field for name, _ in pairs) > 1:
                raise line.refuse("stands more than once in the line.", field, row[field])
        yield line, row


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written: a dict would hide a key that stands there twice."""
