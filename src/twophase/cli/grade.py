"""`twophase grade`: grade notebooks from their files alone."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.workbook.grading.folder import Submission
    from twophase.workbook.grading.grade import Grader

DESCRIPTION = """Grade notebooks. Each exercise runs in a process of its own, with limits of time and memory.
A folder gives a row per learner. Exits 0 when the grading itself worked, whatever the score; 2 when a file that was
named cannot be graded."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "grade", help="grade a notebook, or a folder of submissions", description=DESCRIPTION
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a notebook, or a folder of notebooks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON ('-' for standard output)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report card")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row per learner")
    parser.add_argument("--workers", type=int, metavar="N", help="exercises graded at once (default: cores, at most 4)")


def run(args: argparse.Namespace) -> int:
    """Grade `args.paths`, print and write what was asked for. Returns the exit status."""
    from twophase.workbook.grading.grade import Grader
    from twophase.workbook.lab import Workbook, WorkbookError

    try:
        with Grader(Workbook.find(args.paths[0].resolve().parent), args.workers) as grader:
            submissions = [s for path in args.paths for s in _grade(grader, path, quiet=str(args.json) == "-")]
    except WorkbookError as error:
        print(f"twophase grade: {error}", file=sys.stderr)
        return 2
    try:
        _write(args, submissions)
    except OSError as error:
        print(f"twophase grade: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    graded = [s for s in submissions if s.report is not None]
    named = {path for path in args.paths if not path.is_dir()}
    ungraded = [s for s in submissions if s.report is None and s.path in named]
    return 2 if ungraded or not graded else 0


def _grade(grader: "Grader", path: Path, quiet: bool) -> "list[Submission]":
    from twophase.workbook.grading.folder import Submission
    from twophase.workbook.grading.locate import NotGradableError

    if path.is_dir():
        return _grade_folder(grader, path, quiet)
    try:
        submission = Submission(path.stem, path, grader.grade(path))
    except NotGradableError as error:
        submission = Submission(path.stem, path, problem=str(error))
        print(f"twophase grade: {error}", file=sys.stderr)
    if submission.report is not None and not quiet:
        _print_report(submission)
    return [submission]


def _print_report(submission: "Submission") -> None:
    from rich.console import Console

    from twophase.workbook.grading import report as looks
    from twophase.workbook.grading.grade import DISCLAIMER

    assert submission.report is not None
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(looks.table(submission.report))
    console.print("; ".join(f"{count} {label}" for label, count in looks.tally(submission.report)))
    for warning in submission.report.warnings:
        console.print(f"Note: {warning}", markup=False)
    console.print(f"{DISCLAIMER} ({submission.report.elapsed_s:.1f} s)", style="dim")


def _grade_folder(grader: "Grader", folder: Path, quiet: bool) -> "list[Submission]":
    from tqdm import tqdm

    from twophase.workbook.grading.folder import grade_folder, notebooks_in

    total = len(notebooks_in(folder))
    if not total:
        print(f"twophase grade: no notebooks in {folder}", file=sys.stderr)
    submissions = list(
        tqdm(grade_folder(grader, folder), total=total, unit="notebook", disable=not sys.stderr.isatty())
    )
    if submissions and not quiet:
        _print_rows(submissions)
    return submissions


def _print_rows(submissions: "Sequence[Submission]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from twophase.workbook.grading import report as looks

    made = Table()
    for heading in ("learner", "lab", "points", "attempted", "passed", "why not"):
        made.add_column(heading, overflow="fold")
    for s in submissions:
        if s.report is None:
            made.add_row(Text(s.learner), "", "", "", "", Text(s.problem, style="red"))
        else:
            counts = (str(s.report.num_attempted), str(s.report.count("passed")))
            made.add_row(Text(s.learner), s.report.lab, looks.score(s.report), *counts, "")
    Console(width=None if sys.stdout.isatty() else 120).print(made)


def _write(args: argparse.Namespace, submissions: "Sequence[Submission]") -> None:
    from twophase.workbook.grading import report as looks
    from twophase.workbook.grading.folder import to_csv

    if args.json:
        one_file = len(args.paths) == 1 and not args.paths[0].is_dir() and len(submissions) == 1
        data: Any = [s.to_json() for s in submissions]
        text = json.dumps(data[0] if one_file else {"results": data}, indent=1, ensure_ascii=False) + "\n"
        if str(args.json) == "-":
            sys.stdout.write(text)
        else:
            args.json.write_text(text, encoding="utf-8")
    reports = [s.report for s in submissions if s.report is not None]
    if args.html and reports:
        args.html.write_text(looks.page(reports), encoding="utf-8")
    if args.csv:
        args.csv.write_text(to_csv(submissions), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="twophase grade", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(argv))
