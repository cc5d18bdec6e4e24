"""Reading what was handed in: regular files of a bounded size, and text that is safe to show.

Whatever a submission holds, reading it ends, and either gives text or raises NotGradableError with the reason.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from twophase.core.errors import TwophaseError
from twophase_labs.machine.lines import python_lines
from twophase_labs.machine.notebooks import jupytext, nbformat
from twophase_labs.machine.progress import progress_path

MAX_MIB = 64  # outputs with pictures are a few
MAX_CELLS = 5_000
MAX_CODE = 2**18  # characters in all cells; their syntax trees take hundreds of times as many bytes
# What is handed in for a notebook, by its first bytes.
KINDS = (
    (rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|\?xml)", "an HTML export"),
    (rb"%PDF", "a PDF"),
    (rb"PK\x03\x04", "a zip archive or an office document"),
    (rb"\x1f\x8b|7z\xbc\xaf|Rar!|BZh|\xfd7zXZ", "an archive that is not a zip"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8", "a picture"),
)
CELL_MARK = re.compile(r"^# (?:%%|In\[)", re.MULTILINE)  # of Python files that jupytext or nbconvert wrote
HEADER = re.compile(r"(?:#.*(?:\n|\Z))*")  # of a Python export: it may be YAML, a few lines of which can make gigabytes
MAX_SHOWN = 4000  # characters of one text in a report
# What a terminal obeys, what reorders a line, what is no line end but looks like one, and what UTF-8 cannot hold.
UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class NotGradableError(TwophaseError):
    """A file that cannot be graded; says why."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, open to read.

    Raises:
        NotGradableError: there is no such file, it cannot be read, or it is none (a folder, a pipe, a device).
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotGradableError(f"{path} is a pipe or a device, not a regular file")
            yield file
    except FileNotFoundError:
        raise NotGradableError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise NotGradableError(f"{path} is a folder") from None
    except OSError as error:
        raise NotGradableError(f"{path} cannot be read: {error.strerror}") from None


def read_bytes(path: Path) -> bytes:
    """
    Raises:
        NotGradableError: as `opened`, or the file is too large.
    """
    with opened(path) as file:
        content = file.read(MAX_MIB * 2**20 + 1)
    if len(content) > MAX_MIB * 2**20:
        raise NotGradableError(
            f"{path} is larger than {MAX_MIB} MiB, the most that is read; clear its outputs and save it again"
        )
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for somebody to write to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def text_of(content: bytes, path: Path) -> str:
    """UTF-8, with or without the byte order mark that some editors put in front.

    Raises:
        NotGradableError: it is something else.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotGradableError(f"{path} is not a notebook: it is not even text") from None


def parse_notebook(content: bytes, path: Path) -> dict[str, Any]:
    """A notebook, also one of format 3 or exported as Python.

    Raises:
        NotGradableError: empty, an export of another kind, not a notebook, or more code than anybody writes.
    """
    for beginning, kind in KINDS:
        if re.match(beginning, content, re.IGNORECASE):
            raise NotGradableError(f"{path} is {kind}, not a notebook; ask for the .ipynb")
    text = text_of(content, path)
    if not text.strip():
        raise NotGradableError(f"{path} is empty")
    if path.suffix.lower() == ".py" or CELL_MARK.search(text):
        text = "".join(python_lines(text[: MAX_CODE + 1]))
        if (header := HEADER.match(text)) and "---" in header[0]:
            text = text[header.end() :]
        return _within_limit(jupytext.reads(text, fmt="py:percent"), path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotGradableError(
            f"{path} is not a notebook: it is not valid JSON ({error}); was it saved whole?"
        ) from None
    if isinstance(data, dict) and "worksheets" in data:
        try:
            data = nbformat.convert(nbformat.from_dict(data), 4)
        except Exception:
            raise NotGradableError(
                f"{path} has a notebook format older than 4; open it in JupyterLab and save it"
            ) from None
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise NotGradableError(f"{path} is not a notebook: it is JSON without a list of cells")
    return _within_limit(data, path)


def _within_limit(data: dict[str, Any], path: Path) -> dict[str, Any]:
    if len(data["cells"]) > MAX_CELLS:
        raise NotGradableError(f"{path} has {len(data['cells']):,} cells; at most {MAX_CELLS:,} are graded")
    size = sum(len(source_of(cell)) for cell in data["cells"])
    if size > MAX_CODE:
        raise NotGradableError(f"the cells of {path} hold {size:,} characters; at most {MAX_CODE:,} are graded")
    return data


def source_of(cell: object) -> str:
    """What a code cell says, in one piece, its lines ended by "\n" alone; '' of anything else."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return ""
    source = cell.get("source")
    parts = source if isinstance(source, list) else [source]
    return "".join(python_lines("".join(part for part in parts if isinstance(part, str))))


def progress_of(notebook: Path) -> dict[str, dict[str, Any]]:
    """What the file beside a notebook recorded, by exercise; {} if there is none. It is only read, never mended.

    Raises:
        NotGradableError: it is no progress file.
    """
    path = progress_path(notebook)
    if not os.path.lexists(path):
        return {}
    try:
        entries = json.loads(text_of(read_bytes(path), path))["exercises"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        raise NotGradableError(f"{path} is not a progress file") from None
    return {exercise: entry for exercise, entry in entries if isinstance(entry, dict)}


def plain(text: object) -> str:
    """One line of text that does nothing to a terminal, a table or an encoder: 'a\\x1b[2Jb' shows its escape."""
    shown = UNSHOWABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text)[:MAX_SHOWN])
    return shown + (" ..." if len(str(text)) > MAX_SHOWN else "")


def plain_lines(text: str) -> str:
    """The same, where lines may end and be indented."""
    return "\n".join(plain(line) for line in text[: MAX_SHOWN * 4].expandtabs(4).split("\n"))
