"""Traffic traces in files: CSV or JSON lines with arrival, prompt tokens and output tokens.

    arrival_s,prompt_tokens,output_tokens         {"arrival_s": 0, "prompt_tokens": 374, "output_tokens": 44}
    0,374,44                                      {"arrival_s": 0.51, "prompt_tokens": 396, "output_tokens": 109}
    0.51,396,109

A column `request_id` may be there; other columns are ignored. Lines are in order of arrival, in UTF-8.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from twophase.core.errors import ConfigError
from twophase.serving.workloads import FixedWorkload, TimedRequest

ARRIVAL, PROMPT, OUTPUT, REQUEST_ID = "arrival_s", "prompt_tokens", "output_tokens", "request_id"
REQUIRED = (ARRIVAL, PROMPT, OUTPUT)
FORMATS = (".csv", ".jsonl")
# No trace is a year long, but clock times since 1970 are: nobody wants to wait for those.
LONGEST_S = 366 * 24 * 3600
MOST_TOKENS = 10**9

_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class TraceFileError(ConfigError):
    """A trace file that cannot be played.

    Attributes:
        line: Counted from 1; None where the file as a whole is wrong.
        field: The column or key; None where the line as a whole is wrong.
        value: As it stands in the file.
    """

    def __init__(self, path: Path, line: int | None, field: str | None, value: Any, rule: str) -> None:
        where = f"{path}" + (f", line {line}" if line is not None else "")
        what = f"{field}={_shown(value)}: " if field is not None else ""
        super().__init__(f"{where}: {what}{rule}")
        self.path, self.line, self.field, self.value = path, line, field, value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_trace(path: Path | str) -> Iterator[TimedRequest]:
    """The requests of a trace, read as they are asked for: a file of any length takes no memory.

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


Row = tuple[int, Mapping[str, Any]]  # line number and fields


def _requests(path: Path, rows: Iterable[Row]) -> Iterator[TimedRequest]:
    before_s: float | int = 0
    is_empty = True
    for line, row in rows:
        is_empty = False
        for field in REQUIRED:
            if row.get(field) is None:
                raise TraceFileError(
                    path, line, field, None, "is missing; each line needs " + ", ".join(REQUIRED) + "."
                )
        arrival_s = _arrival(path, line, row[ARRIVAL], before_s)
        before_s = arrival_s
        yield TimedRequest(
            request_id=_request_id(path, line, row.get(REQUEST_ID)),
            arrival_s=arrival_s,
            num_prompt_tokens=_count(path, line, PROMPT, row[PROMPT]),
            num_output_tokens=_count(path, line, OUTPUT, row[OUTPUT]),
        )
    if is_empty:
        raise TraceFileError(path, None, None, None, "the trace has no requests.")


def _arrival(path: Path, line: int, value: Any, before_s: float | int) -> float:
    def refuse(rule: str) -> NoReturn:
        raise TraceFileError(path, line, ARRIVAL, value, rule)

    is_text = isinstance(value, str) and _DECIMAL.fullmatch(value.strip())
    if not is_text and (not isinstance(value, int | float) or isinstance(value, bool)):
        infinite = isinstance(value, str) and value.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")
        refuse("must be finite." if infinite else "must be a number of seconds.")
    # A whole number too long for a float is as good as infinite.
    arrival_s = (
        float(value) if is_text or isinstance(value, float) else float(min(max(value, -LONGEST_S), 10 * LONGEST_S))
    )
    if not math.isfinite(arrival_s):
        refuse("must be finite.")
    if arrival_s < 0:
        refuse("must not be negative; times count from the start of the trace.")
    if arrival_s < before_s:
        refuse(f"must not be before the line above it ({before_s} s); sort the trace by arrival.")
    if arrival_s > LONGEST_S:
        refuse("is more than a year; times count in seconds from the start of the trace, not from 1970.")
    return arrival_s


def _count(path: Path, line: int, field: str, value: Any) -> int:
    is_text = isinstance(value, str) and _WHOLE.fullmatch(value.strip())
    if not is_text and (not isinstance(value, int) or isinstance(value, bool)):
        raise TraceFileError(path, line, field, value, "must be a whole number of tokens, at least 1.")
    count = int(value)
    if not 1 <= count <= MOST_TOKENS:
        raise TraceFileError(path, line, field, value, f"must be in [1, {MOST_TOKENS}] tokens.")
    return count


def _request_id(path: Path, line: int, value: Any) -> str:
    if value is None or value == "":
        return f"line-{line}"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TraceFileError(path, line, REQUEST_ID, value, "must be text or a whole number.")
    return str(value)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, decoded one by one so that a broken one can be named."""
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            try:
                text = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TraceFileError(path, number, None, None, f"is not UTF-8 text ({error.reason}).") from error
            if text.strip():
                yield number, text


def _csv_rows(path: Path) -> Iterator[Row]:
    header: list[str] | None = None
    for line, text in _lines(path):
        try:
            # Line by line: a quote left open is an error of its line, not of the rest of the file.
            (cells,) = csv.reader([text], strict=True)
        except csv.Error as error:
            raise TraceFileError(path, line, None, None, f"is not CSV ({error}): {_shown(text)}") from error
        cells = [cell.strip() for cell in cells]
        if header is None:
            header = _header(path, line, cells)
        elif len(cells) != len(header):
            rule = f"has {len(cells)} fields, and the header has {len(header)}: {_shown(text)}"
            raise TraceFileError(path, line, None, None, rule)
        else:
            yield line, {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _header(path: Path, line: int, cells: list[str]) -> list[str]:
    for field in REQUIRED:
        if field not in cells:
            rule = f"no such column; the first line names the columns, {', '.join(REQUIRED)} among them, got {cells}."
            raise TraceFileError(path, line, field, None, rule)
    for field in (*REQUIRED, REQUEST_ID):
        if cells.count(field) > 1:
            raise TraceFileError(path, line, field, None, f"stands {cells.count(field)} times in the header.")
    return cells


def _jsonl_rows(path: Path) -> Iterator[Row]:
    for line, text in _lines(path):
        try:
            row = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, line, pairs))
        except (json.JSONDecodeError, RecursionError, ValueError) as error:
            if isinstance(error, TraceFileError):
                raise
            raise TraceFileError(path, line, None, None, f"is not JSON ({error}): {_shown(text)}") from error
        if not isinstance(row, dict):
            raise TraceFileError(
                path, line, None, None, f"must be a JSON object with {', '.join(REQUIRED)}: {_shown(text)}"
            )
        yield line, row


def _unique(path: Path, line: int, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:
        if name in REQUIRED and sum(key == name for key, _ in pairs) > 1:
            raise TraceFileError(path, line, name, value, "stands twice in the line.")
    return dict(pairs)
