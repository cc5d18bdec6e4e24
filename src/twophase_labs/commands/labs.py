"""`twophase labs`: list the labs, show an exercise's cell as shipped, start a lab afresh."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from twophase_tools.extras import check_installed

if TYPE_CHECKING:
    from twophase_labs.machine.lab import Workbook


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("labs", help="list the labs, or start one afresh")
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="the labs with their exercises, points and minutes")
    show = actions.add_parser("show", help="print the cell of an exercise as it was shipped")
    show.add_argument("exercise", help="such as 1.3")
    reset = actions.add_parser("reset", help="a fresh notebook; the old one and its progress are moved aside")
    reset.add_argument("lab", help="such as 01")
    parser.set_defaults(action="list")


def run(args: argparse.Namespace) -> int:
    """Do `args.action`. Returns the exit status: 2 if there is no such lab or exercise."""
    check_installed("twophase labs")
    from twophase_labs.machine.lab import Workbook, WorkbookError

    try:
        workbook = Workbook.find()
        if args.action == "reset":
            return _reset(workbook, args.lab)
        if args.action == "show":
            return _show(workbook, args.exercise)
        return _list(workbook)
    except WorkbookError as error:
        print(f"twophase labs: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `twophase labs | head`: the command line's business
        raise
    except OSError as error:
        print(f"twophase labs: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _list(workbook: "Workbook") -> int:
    for lab in workbook.labs.values():
        points = sum(e.points for e in lab.core)
        size = f"{len(lab.core):3} exercises  {points:3} points  " if lab.core else ""
        extra = f"  and {len(lab.extra)} extra" if lab.extra else ""
        print(f"{lab.name:24}{size}{lab.minutes:3} min with reading{extra}")
    return 0


def _show(workbook: "Workbook", exercise: str) -> int:
    lab = workbook.lab_of(exercise)
    lab.exercise(exercise)
    print(lab.templates[exercise].shipped())
    return 0


def _reset(workbook: "Workbook", number: str) -> int:
    """The old files get names that were free, the new notebook is complete before it takes its place."""
    from twophase_labs.machine.build import learner_notebook, learner_path, to_text
    from twophase_labs.machine.progress import free_name, progress_path

    lab = workbook.lab(number)
    notebook = learner_path(lab, workbook.root)
    notebook.parent.mkdir(exist_ok=True)
    text = to_text(learner_notebook(lab))
    aside = free_name(notebook.with_name(f"old_{notebook.name}"))
    for old, new in ((notebook, aside), (progress_path(notebook), free_name(progress_path(aside)))):
        if old.exists():
            os.rename(old, new)
            print(f"moved {old.name} to {new.name}")
    fresh = notebook.with_suffix(".ipynb.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, notebook)
    print(f"{notebook} is as shipped; reload it if it is open")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="twophase labs")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
