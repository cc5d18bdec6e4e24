"""`twophase grade`: grade notebooks from their files alone."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twophase_tools.extras import check_installed

if TYPE_CHECKING:
    from twophase_labs.machine.grading.folder import Submission
    from twophase_labs.machine.grading.grade import Grader
    from twophase_labs.machine.lab import Workbook

DESCRIPTION = """Grade notebooks. Each exercise runs in a process of its own, with limits of time and memory.
A folder or a zip archive gives a row per submission, also of what cannot be graded; files of results are brought up to
date after each. The checks are those of the workbook that this folder is in, or of the installed one. Exits 0 when all
were graded, whatever the score; 2 when some were not."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "grade", help="grade a notebook, or a folder of submissions", description=DESCRIPTION
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="a notebook, or a folder or zip archive of submissions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON ('-' for standard output)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report card")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row per learner")
    parser.add_argument("--csv-for", choices=("canvas", "moodle"), help="with the columns that this platform imports")
    parser.add_argument("--only", metavar="3.7,3.8", default="", help="grade these exercises, and no other")
    parser.add_argument("--jobs", type=int, metavar="N", help="notebooks graded at once (default: cores, at most 4)")
    parser.add_argument(
        "--gradescope", type=Path, metavar="OUT.zip", help="grade nothing; write an autograder of the lab --lab"
    )
    parser.add_argument("--lab", metavar="03", help="of the autograder")
    parser.add_argument(
        "--minutes", type=float, metavar="M", default=10, help="of the autograder, its time limit (default: 10)"
    )


def run(args: argparse.Namespace) -> int:
    """Grade `args.paths`, print and write what was asked for. Returns the exit status."""
    check_installed("twophase grade")
    from twophase_labs.machine.grading.grade import Grader
    from twophase_labs.machine.grading.output import Output, to_json
    from twophase_labs.machine.lab import Workbook, WorkbookError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 shows escapes
            stream.reconfigure(errors="backslashreplace")
    quiet = str(args.json) == "-"
    output = Output(None if quiet else args.json, args.csv, args.html, _is_single(args.paths), args.csv_for or "own")
    submissions: list[Submission] = []
    try:
        workbook = Workbook.find()  # not the one beside a submission: its author would have written the checks
        only = frozenset(args.only.replace(",", " ").split())
        for exercise in sorted(only):
            workbook.lab_of(exercise).exercise(exercise)
        if args.gradescope is not None:
            return _pack(workbook, args, only)
        if not args.paths:
            raise WorkbookError("name a notebook, or a folder or zip archive of submissions")
        output.try_out()  # what cannot be written is told before the work
        with Grader(workbook, args.jobs, only) as grader:
            for path in args.paths:
                of_path: list[Submission] = []
                for submission in _grade(grader, path, quiet, (args.json, args.csv, args.html)):
                    of_path.append(submission)
                    with contextlib.suppress(OSError):  # a disk that is full now may not be at the end
                        output.write([*submissions, *of_path])
                submissions += sorted(of_path, key=lambda s: s.path)
        output.write(submissions, last=True)
    except WorkbookError as error:
        print(f"twophase grade: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"twophase grade: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    if quiet:
        sys.stdout.write(to_json(submissions, output.single, ascii_only=True))
    graded = [s for s in submissions if s.report is not None]
    if len(graded) < len(submissions):
        which = f"{len(submissions) - len(graded)} of {len(submissions)} submissions were"
        print(f"twophase grade: {which} not graded; their rows say why", file=sys.stderr)
    return 0 if graded and len(graded) == len(submissions) else 2


def _pack(workbook: "Workbook", args: argparse.Namespace, only: frozenset[str]) -> int:
    from twophase_labs.machine.grading.gradescope import pack
    from twophase_labs.machine.lab import WorkbookError

    if args.lab is None or args.paths or not 2 <= args.minutes <= 40:
        raise WorkbookError("an autograder has one lab, --lab 03, no notebook yet, and 2 to 40 --minutes")
    lab = workbook.lab(args.lab)
    if strangers := only - lab.exercises.keys():
        raise WorkbookError(f"lab {lab.number} has no exercise {', '.join(sorted(strangers))}")
    pack(workbook, lab, args.gradescope, only, args.minutes)
    print(f"{args.gradescope} grades lab {lab.number} on Gradescope: upload it as the assignment's autograder")
    return 0


def _is_single(paths: Sequence[Path]) -> bool:
    return len(paths) == 1 and not _is_folder(paths[0])


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) or (path.suffix.lower() == ".zip" and path.exists())


def _grade(grader: "Grader", path: Path, quiet: bool, results: Sequence[Path | None]) -> "Iterator[Submission]":
    from twophase_labs.machine.grading.folder import grade_one

    if _is_folder(path):
        yield from _grade_folder(grader, path, quiet, results)
        return
    submission = grade_one(grader, path, path.stem)
    if submission.report is None:
        print(f"twophase grade: {submission.problem}", file=sys.stderr)
    elif not quiet:
        _print_report(submission)
    yield submission


def _print_report(submission: "Submission") -> None:
    from rich.console import Console

    from twophase_labs.machine.grading import report as looks
    from twophase_labs.machine.grading.grade import DISCLAIMER

    report = submission.report
    assert report is not None
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    console.print(looks.table(report))
    console.print("; ".join(f"{count} {label}" for label, count in looks.tally(report)))
    for warning in report.warnings:
        console.print(f"Note: {warning}")
    for flag in submission.flags():
        console.print(f"Look twice: {flag}")
    console.print(f"{DISCLAIMER} (isolation: {report.isolation}; {report.elapsed_s:.1f} s)", style="dim")


def _grade_folder(
    grader: "Grader", folder: Path, quiet: bool, results: Sequence[Path | None]
) -> "Iterator[Submission]":
    from tqdm import tqdm

    from twophase_labs.machine.grading.folder import grade_folder

    graded: list[Submission] = []
    for submission in tqdm(grade_folder(grader, folder, results), unit="notebook", disable=not sys.stderr.isatty()):
        graded.append(submission)
        yield submission
    if not graded:
        print(f"twophase grade: no submissions in {folder}", file=sys.stderr)
    elif not quiet:
        _print_rows(sorted(graded, key=lambda s: s.path))


def _print_rows(submissions: "Sequence[Submission]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from twophase_labs.machine.grading import report as looks
    from twophase_labs.machine.grading.folder import counted

    made = Table()
    for heading in ("learner", "lab", "points", "attempted", "passed", "why not; where to look twice"):
        made.add_column(heading, overflow="fold")
    for s in counted(submissions):
        flags = Text("\n".join(s.flags(submissions)))
        if s.report is None:
            made.add_row(Text(s.learner), "", "", "", "", Text(s.problem, style="red"))
        else:
            counts = (str(s.report.num_attempted), str(s.report.count("passed")))
            made.add_row(Text(s.learner), s.report.lab, looks.score(s.report), *counts, flags)
    Console(width=None if sys.stdout.isatty() else 120, markup=False).print(made)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="twophase grade", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
