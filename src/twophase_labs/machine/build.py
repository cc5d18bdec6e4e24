"""Notebooks from one source: `labsolutions/NN_name.py` (jupytext percent format) is what an author edits.

    python -m twophase_labs.machine.build [01 ...]   rebuild every notebook, or those of some labs
    python -m twophase_labs.machine.build --check    fail if a notebook no longer matches its source or shows a solution

`labsolutions/NN_name.ipynb` is the solved, executed notebook, `labs/NN_name.ipynb` the learner's, with blanks and
without outputs. Cell ids follow from the position and nothing is stamped with a time, so a rebuild changes only what
the source changed.
"""

import argparse
import copy
import os
import re
import sys
import tempfile
from pathlib import Path

from twophase_labs.machine import glossary, lint, rules
from twophase_labs.machine.blanks import SourceError
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.lab import PACKAGE, SOLUTION_TAG, Lab, Workbook, WorkbookError, exercise_of, tags
from twophase_labs.machine.notebooks import NotebookNode, nbformat
from twophase_labs.machine.progress import DIRECTORY_VARIABLE
from twophase_labs.machine.sections import MINUTES, Section

CELL_TIMEOUT_S = 1800  # as in the tests: whoever builds bounds the whole, and a busy machine takes its time


def solved_notebook(lab: Lab) -> NotebookNode:
    """The notebook with its answers and cards, without outputs."""
    notebook = copy.deepcopy(lab.notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = rules.BOX.sub(_folded, _with_cards(cell.source, lab))
    return notebook


def learner_notebook(lab: Lab) -> NotebookNode:
    """The notebook with blanks in place of the answers."""
    notebook = solved_notebook(lab)
    notebook.cells = [cell for cell in notebook.cells if SOLUTION_TAG not in tags(cell)]
    for cell in notebook.cells:
        exercise = exercise_of(cell)
        if exercise is not None:
            cell.source = lab.templates[exercise].shipped()
    return notebook


def _with_cards(markdown: str, lab: Lab) -> str:
    lines = []
    for line in markdown.split("\n"):
        words = line.removeprefix("<!--").removesuffix("-->").split() if line.startswith("<!--") else []
        minutes = MINUTES.fullmatch(line)
        if words[:1] == ["card"]:
            line = card(lab.exercise(words[1]), lab.is_open(words[1]))
        elif words == ["map"]:
            line = section_map(lab)
        elif words == ["glossary"]:
            line = glossary.as_markdown()
        elif minutes:
            if minutes["opening"]:
                continue  # only the map says it
            line = _minutes_line(int(minutes["core"]), int(minutes["extra"] or 0))
        lines.append(line)
    return "\n".join(lines)


def _folded(box: re.Match[str]) -> str:
    """A box 'In production' that opens at a click: who learns the idea may pass by the flags of products."""
    text = "\n".join(line.removeprefix(">").removeprefix(" ") for line in box[0].split("\n"))
    heading, text = text.split("**", 2)[1:]
    return f"<details><summary><b>{heading.rstrip('.')}</b></summary>\n\n{text.strip()}\n</details>"


def _minutes_line(core: int, extra: int) -> str:
    """What stands under a section's heading."""
    if not core:
        return f"*Optional: {extra} minutes*"
    return f"*{core} minute{'s' * (core != 1)}*" + (f", and {extra} for *Going further*" if extra else "")


def card(exercise: Exercise, is_open: bool = False) -> str:
    """The head of an exercise in markdown."""
    size = f"{exercise.lines} line{'s' * (exercise.lines != 1)}" if exercise.is_code else exercise.kind
    facts = [
        *["open: you write it whole"] * is_open,
        exercise.worth + " for committing" * (exercise.kind == "prediction"),
        f"{exercise.minutes} min",
        f"about {size}" if exercise.is_code else size,
        "difficulty " + "●" * exercise.difficulty + "○" * (3 - exercise.difficulty),
        *({"triton": "Triton", "gpu": "CUDA", "model": "needs the model"}[n] for n in exercise.needs if n != "cpu"),
    ]
    return f"### Exercise {exercise.id} · {exercise.title}\n\n*{' · '.join(facts)}*\n"


def section_map(lab: Lab) -> str:
    """The sections of a lab as a markdown table: how long each takes and which exercises are in it."""
    has_exercises, has_extra = bool(lab.exercises), bool(lab.extra)
    rows = [["section", "minutes", "exercises", "extra"], ["---", "---:", "---", "---"]]
    opening, *sections = lab.sections
    if opening.minutes:
        rows.append(["the first cell", _minutes(opening), "", ""])
    for section in sections:
        found = [lab.exercise(i) for i in section.exercises]
        core, extra = ([e.id for e in found if e.is_extra == is_extra] for is_extra in (False, True))
        rows.append([section.link, _minutes(section), ", ".join(core), ", ".join(extra)])
    points = f"{len(lab.core)} exercises, {sum(e.points for e in lab.core)} points"
    extra_points = f"{len(lab.extra)}, {sum(e.points for e in lab.extra)} extra points"
    rows.append([f"**{cell}**" for cell in ("total", _minutes(lab), points, extra_points)])
    num_columns = 2 + has_exercises + has_extra
    return "\n".join(f"| {' | '.join(row[:num_columns])} |" for row in rows)


def _minutes(of: Lab | Section) -> str:
    return f"{of.minutes or ''}{f' + {of.extra_minutes}' * bool(of.extra_minutes)}".strip()


def execute(notebook: NotebookNode, folder: Path, workbook: Workbook) -> NotebookNode:
    """A copy with the outputs of a run in a fresh kernel; raises nbclient's error at the first cell that fails."""
    from nbclient import NotebookClient  # slow to import, and `--check` runs nothing

    executed = copy.deepcopy(notebook)
    client = NotebookClient(
        executed, timeout=CELL_TIMEOUT_S, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    with tempfile.TemporaryDirectory() as progress:
        client.execute(env={**os.environ, **workbook.environment(), DIRECTORY_VARIABLE: progress})
    executed.metadata = copy.deepcopy(notebook.metadata)  # the kernel notes the Python version it happened to be
    return executed


def learner_path(lab: Lab, root: Path) -> Path:
    return root / "labs" / f"{lab.name}.ipynb"


def to_text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def build(lab: Lab, workbook: Workbook) -> None:
    """Write the executed and the learner's notebook of one lab.

    Raises:
        SourceError: the source breaks a rule; all that are broken are named.
    """
    problems = lint.problems(lab, learner_notebook(lab))
    if problems:
        raise SourceError("\n".join(problems))
    for problem in rules.problems(lab):  # a lab in the making may be built
        print(f"to do: {problem}", file=sys.stderr)
    solved = execute(solved_notebook(lab), lab.source.parent, workbook)
    lab.source.with_suffix(".ipynb").write_text(to_text(solved), encoding="utf-8")
    learner_path(lab, workbook.root).write_text(to_text(learner_notebook(lab)), encoding="utf-8")


def drift(lab: Lab, root: Path) -> list[str]:
    """What no longer matches the source, in words; outputs are nbval's business."""
    learner, solved = learner_path(lab, root), lab.source.with_suffix(".ipynb")
    found = [f"{path.relative_to(root)} is missing" for path in (learner, solved) if not path.exists()]
    if found:
        return found
    if learner.read_text(encoding="utf-8") != to_text(learner_notebook(lab)):
        found.append(f"{learner.relative_to(root)} differs from {lab.source.relative_to(root)}")
    found += lint.leaks(lab, nbformat.read(learner, as_version=4))
    expected, written = solved_notebook(lab), nbformat.read(solved, as_version=4)
    if _sources(written) != _sources(expected) or written.metadata != expected.metadata:
        found.append(f"{solved.relative_to(root)} differs from {lab.source.relative_to(root)}")
    elif any(c.cell_type == "code" and c.execution_count is None for c in written.cells):
        found.append(f"{solved.relative_to(root)} was not executed")
    return found


def broken_rules(lab: Lab) -> list[str]:
    """What the lab's source has to mend, in words."""
    return lint.problems(lab, learner_notebook(lab)) + rules.problems(lab)


def _sources(notebook: NotebookNode) -> list[tuple[str, str, str]]:
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labs", nargs="*", help="numbers of labs (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a notebook drifted")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    parser.add_argument("--package", default=PACKAGE, help="where the chapters are")
    args = parser.parse_args(argv)
    workbook = Workbook(args.root, args.package)
    if not workbook.labs:
        print(f"no labsolutions/NN_name.py under {args.root}; run this in the repository's top folder", file=sys.stderr)
        return 2
    try:
        labs = [workbook.lab(number) for number in args.labs] or list(workbook.labs.values())
        return _check(labs, args.root) if args.check else _build(labs, workbook)
    except (SourceError, WorkbookError) as error:
        print(error, file=sys.stderr)
        return 1


def _build(labs: list[Lab], workbook: Workbook) -> int:
    for lab in labs:
        print(f"building {lab.name}", flush=True)
        build(lab, workbook)
    return 0


def _check(labs: list[Lab], root: Path) -> int:
    problems = [f"drift: {problem}; run `make labs`" for lab in labs for problem in drift(lab, root)]
    problems += [f"rule: {problem}" for lab in labs for problem in broken_rules(lab)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(labs)} notebook(s) match their source")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
