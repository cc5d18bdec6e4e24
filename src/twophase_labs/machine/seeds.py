"""Answers whose verdict luck decides: every answer of a bank, judged with many seeds for the random inputs.

    python -m twophase_labs.machine.prove 01 --seeds 20

An answer is judged here once per seed in one process, as in a notebook, forked from one that has run the lab's setup.
That is far cheaper than a job of the grader for each seed. Whether it differs there as well is for the caller to try.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from twophase_labs.machine.forks import renew_torch_in_forks
from twophase_labs.machine.grading.lane import ENVIRONMENT
from twophase_labs.machine.guard import Guard
from twophase_labs.machine.judge import Judge, Verdict, explain, run_cell
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.limits import GRACE_S, LOAD, limit_this_process, time_limit
from twophase_labs.machine.session import Session, adopt
from twophase_labs.machine.solved import run_setup


def said(verdict: Verdict) -> str:
    return f"{verdict.verdict}: {verdict.failed_property}" if verdict.failed_property else verdict.verdict


def judged(workbook: Workbook, lab: Lab, answers: Sequence[tuple[str, str]], num_seeds: int) -> list[list[str]]:
    """What is said of each answer, an exercise's id and its cell, for the seeds 0, 1, ...

    Fewer than `num_seeds` where one seed takes all the time an exercise has, or ends the process.
    """
    num_processes = min(os.cpu_count() or 1, 4)
    command = [sys.executable, "-m", __name__, str(workbook.root), workbook.package, lab.number, str(num_seeds)]

    def share(at: int) -> list[list[str]]:
        text = json.dumps(answers[at::num_processes])
        environment = {**os.environ, **ENVIRONMENT}
        ran = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, check=True, env=environment)
        found: list[list[str]] = json.loads(ran.stdout)
        return found

    with ThreadPoolExecutor(num_processes) as pool:
        shares = list(pool.map(share, range(num_processes)))
    return [shares[at % num_processes][at // num_processes] for at in range(len(answers))]


def _judge_all(judge: Judge, lab: Lab, setup: ModuleType, answers: list[list[str]], num_seeds: int) -> list[list[str]]:
    found = []
    fork = get_context("fork")
    for exercise, source in answers:
        mine, its = fork.Pipe(duplex=False)
        child = fork.Process(target=_judge_one, args=(judge, lab, setup, exercise, source, num_seeds, its), daemon=True)
        child.start()
        its.close()
        heard: list[str] = []
        patience = LOAD * lab.exercise(exercise).time_limit_s + GRACE_S  # of a cell, and of each check
        try:
            while mine.poll(2 * patience):
                heard.append(mine.recv())
        except EOFError:
            pass
        child.kill()
        child.join()
        mine.close()
        found.append(heard)
    return found


def _judge_one(
    judge: Judge, lab: Lab, setup: ModuleType, i: str, source: str, num_seeds: int, results: Connection
) -> None:
    exercise = lab.exercise(i)
    limit_this_process(exercise.memory_limit_gib)
    try:
        with time_limit(exercise.time_limit_s):
            run_cell(source, vars(setup), f"<exercise {i}>")
    except BaseException as error:
        results.send(said(Verdict(i, *explain(error, exercise, judge.references))))
        return
    for seed in range(num_seeds):
        verdict = judge.judge(exercise, vars(setup), fall_back=tuple(lab.all_uses(i)), seed=seed)
        results.send(said(verdict))
        if verdict.verdict in ("timeout", "not_run_here"):
            return


def main() -> None:
    root, package, number, num_seeds = sys.argv[1:]
    renew_torch_in_forks()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what answers print
    answers = json.load(sys.stdin)
    lab = Workbook(Path(root), package).lab(number)
    setup = run_setup(lab)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(lab, Path(folder), Guard(lab.package))
        adopt(session)
        json.dump(_judge_all(session.judge, lab, setup, answers, int(num_seeds)), output)


if __name__ == "__main__":
    main()
