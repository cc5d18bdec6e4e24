"""The proofs of a lab's checks, as a table.

    python -m twophase_labs.machine.prove 01                     or --exercise 1.3, with each of these
    python -m twophase_labs.machine.prove 01 --seeds 20          answers whose verdict luck decides
    python -m twophase_labs.machine.prove 01 --mutate            small edits of the solutions that the checks accept

As shipped nothing is attempted and nothing scores; solved everything passes; every wrong answer of the bank is
rejected by the property that is meant for it, which has a hint; every right one is accepted.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nbformat import NotebookNode
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twophase_labs.machine import mutate
from twophase_labs.machine.bank import Answer
from twophase_labs.machine.build import learner_notebook, solved_notebook
from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.grading.lane import Job
from twophase_labs.machine.grading.locate import code_cells
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import PACKAGE, Lab, Workbook, WorkbookError

NUM_WRONG, NUM_RIGHT = 5, 2
Kind = Literal["shipped", "solved", "wrong", "right", "bank"]


@dataclass(frozen=True)
class Row:
    """One proof: `wanted` and `got` are verdicts, with the rejecting property where there is one."""

    exercise: str
    answer: Kind
    title: str
    wanted: str
    got: str
    holds: bool
    reason: str = ""


def prove(grader: Grader, lab: Lab, seed: int = 0, only: str | None = None) -> list[Row]:
    """All proofs of one lab, or of its exercise `only`; `seed` is of the bank's random inputs."""
    rows = [*_as_a_whole(grader, lab, only), *_bank_sizes(lab)]
    tried = [(i, answer) for i, bank in lab.banks.items() if only in (None, i) for answer in bank]
    jobs = [Job(i, answer.source(lab.templates[i]), fall_back=lab.all_uses(i), seed=seed) for i, answer in tried]
    rows += [_row(i, answer, got) for (i, answer), got in zip(tried, grader.run_all(lab, jobs), strict=True)]
    order = list(lab.exercises)
    return sorted((row for row in rows if only in (None, row.exercise)), key=lambda row: order.index(row.exercise))


def _as_a_whole(grader: Grader, lab: Lab, only: str | None) -> Iterator[Row]:
    named = {only, *lab.all_uses(only)} if only else set(lab.exercises)

    def judged(notebook: NotebookNode) -> dict[str, Verdict]:
        return grader.judge(lab, [c for c in code_cells(notebook) if c.exercise is None or c.exercise in named])

    shipped, solved = judged(learner_notebook(lab)), judged(solved_notebook(lab))
    for i in (i for i in lab.exercises if i in named):
        got = shipped[i].verdict
        yield Row(i, "shipped", "as shipped", "not_attempted", got, got == "not_attempted", shipped[i].reason)
        says = _said(solved[i])
        yield Row(i, "solved", "as solved", "passed", says, _here(solved[i], solved[i].passed), solved[i].reason)


def _bank_sizes(lab: Lab) -> Iterator[Row]:
    wanted = f"at least {NUM_WRONG} wrong, {NUM_RIGHT} right"
    for exercise in lab.exercises.values():
        if exercise.is_code:
            bank = lab.banks.get(exercise.id, ())
            num_right = sum(answer.rejected_by is None for answer in bank)
            num_wrong = len(bank) - num_right
            got = f"{num_wrong} wrong, {num_right} right"
            yield Row(exercise.id, "bank", "answers", wanted, got, num_wrong >= NUM_WRONG and num_right >= NUM_RIGHT)


def _row(exercise: str, answer: Answer, got: Verdict) -> Row:
    if answer.rejected_by is None:
        return Row(exercise, "right", answer.title, "passed", _said(got), _here(got, got.passed), got.reason)
    # A property that rejects has a hint; an exception of the answer's own has the line that raised it.
    is_helpful = bool(got.hint) if got.verdict == "failed" else any(d.startswith("line ") for d in got.details)
    meant = got.verdict in ("failed", "error") and got.failed_property == answer.rejected_by and is_helpful
    wanted = f"rejected: {answer.rejected_by}"
    return Row(exercise, "wrong", answer.title, wanted, _said(got), _here(got, meant), got.reason)


def _said(verdict: Verdict) -> str:
    return f"{verdict.verdict}: {verdict.failed_property}" if verdict.failed_property else verdict.verdict


def _here(verdict: Verdict, holds: bool) -> bool:
    """What cannot run here proves nothing, and breaks nothing."""
    return holds or verdict.verdict == "not_run_here"


def lucky(grader: Grader, lab: Lab, num_seeds: int, only: str | None = None) -> list[Row]:
    """The answers, solved and of the bank, of which something else is said with other random inputs."""
    found = []
    for rows in zip(*(prove(grader, lab, seed, only) for seed in range(num_seeds)), strict=True):
        counts = Counter(row.got for row in rows).most_common()
        if len(counts) > 1:
            got = "; ".join(f"{said} ({times} of {num_seeds})" for said, times in counts)
            # Which property is the first to reject a wrong answer may be luck; whether one does must not be.
            found.append(replace(rows[0], got=got, holds=rows[0].answer == "wrong" and "passed" not in dict(counts)))
    return found


def table(rows: list[Row], title: str = "") -> Table:
    made = Table(title=title or summary(rows), title_justify="left")
    for heading in ("", "exercise", "answer", "", "got", "why"):
        made.add_column(heading, overflow="fold")
    for row in rows:
        mark = "[green]✓[/]" if row.holds else "[red]✗[/]"
        got = row.got if row.holds else f"{row.got}\nwanted {row.wanted}"
        made.add_row(mark, row.exercise, row.answer, *map(escape, (row.title, got, row.reason)))
    return made


def summary(rows: list[Row]) -> str:
    run = [row for row in rows if row.got != "not_run_here"]
    held = sum(row.holds for row in run)
    # Rounded down: 100 % means all.
    percent = 100 * held // max(1, len(run))
    return f"{held} of {len(run)} proofs hold ({percent} %); not run here: {len(rows) - len(run)}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labs", nargs="*", help="numbers of labs (default: all with exercises)")
    parser.add_argument("--root", type=Path, help="the repository (default: the one this folder is in)")
    parser.add_argument("--package", default=PACKAGE, help="where the chapters are")
    parser.add_argument("--seeds", type=int, metavar="N", help="judge every answer with N seeds; print what differs")
    parser.add_argument("--mutate", action="store_true", help="run edits of the solutions; print what is accepted")
    parser.add_argument("--exercise", metavar="ID", help="only this exercise")
    parser.add_argument("--edits", type=int, default=mutate.NUM_EDITS, metavar="N", help="at most N of an exercise")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core, at most 4)")
    args = parser.parse_args(argv)
    try:
        workbook = Workbook(args.root, args.package) if args.root else Workbook.find()
        sys.path.insert(0, str(workbook.root))  # the answers are in its tests/, wherever this was started
        names = [args.exercise.partition(".")[0]] if args.exercise and not args.labs else args.labs
        labs = [workbook.lab(name) for name in names] or list(workbook.labs.values())
        if args.exercise:
            workbook.lab_of(args.exercise).exercise(args.exercise)
        with Grader(workbook, args.workers) as grader:
            if args.mutate:
                return _print_mutations(grader, labs, args.edits, args.exercise)
            if args.seeds:
                rows = [row for lab in labs for row in lucky(grader, lab, args.seeds, args.exercise)]
            else:
                rows = [row for lab in labs for row in prove(grader, lab, only=args.exercise)]
    except WorkbookError as error:
        print(error, file=sys.stderr)
        return 2
    title = summary(rows)
    if args.seeds:
        flaky = sum(not row.holds for row in rows)
        title = f"{flaky} answers pass or fail by luck with {args.seeds} seeds; {len(rows) - flaky} fail differently"
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows, title))
    print(title)
    return 0 if all(row.holds for row in rows) else 1


def _print_mutations(grader: Grader, labs: Sequence[Lab], num_edits: int, only: str | None) -> int:
    found = []
    for lab in labs:
        for exercise in lab.exercises.values():
            if exercise.is_code and only in (None, exercise.id):
                found.append(mutate.search(grader, lab, exercise.id, num_edits))
                print(found[-1], flush=True)
    print(mutate.summary(found))
    return 1 if any(one.survivors or one.errors for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
