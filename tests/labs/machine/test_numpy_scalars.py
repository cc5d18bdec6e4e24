"""An integer that came from NumPy is an integer: every solved answer passes with its numbers turned into NumPy's.

Judged in the answer's own process, as in a notebook: on the way to another process scalars become plain anyway.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from twophase_labs.machine.judge import run_cell
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.session import Session, adopt
from twophase_labs.machine.solved import run_setup

WORKBOOK = Workbook(Path(__file__).parents[3])
RETURNS_NO_NUMBERS = {
    "1.3": "a tensor",
    "2.9": "a tensor",
    "3.13": "an engine",
}

IN_NUMPY = """
def _in_numpy(thing):
    import functools, types
    import numpy as np

    def turned(x):
        if type(x) is int and abs(x) >= 2**63:
            return x
        if type(x) in (bool, int, float):
            return {bool: np.bool_, int: np.int64, float: np.float64}[type(x)](x)
        if type(x) in (list, tuple):
            return type(x)(map(turned, x))
        return {key: turned(value) for key, value in x.items()} if type(x) is dict else x

    if isinstance(thing, type):
        for name, value in list(vars(thing).items()):
            if isinstance(value, types.FunctionType) and not name.startswith("__"):
                setattr(thing, name, _in_numpy(value))
    if not isinstance(thing, types.FunctionType):
        return thing
    return functools.wraps(thing)(lambda *args, **kwargs: turned(thing(*args, **kwargs)))
"""


def refused(number: str, folder: Path) -> list[str]:
    """What the checks of a lab say against its solved answers."""
    lab = WORKBOOK.lab(number)
    namespace = vars(run_setup(lab))
    session = Session(lab, folder)
    adopt(session)
    found = []
    for exercise in lab.exercises.values():
        if exercise.kind != "code" or exercise.id in RETURNS_NO_NUMBERS:
            continue
        turned = "".join(f"{name} = _in_numpy({name})\n" for name in exercise.names)
        run_cell(lab.templates[exercise.id].filled() + IN_NUMPY + turned, namespace, f"<exercise {exercise.id}>")
        verdict = session.judge.judge(exercise, namespace, fall_back=tuple(lab.all_uses(exercise.id)), seed=0)
        if verdict.verdict not in ("passed", "not_run_here"):
            found.append(f"{exercise.id}: {verdict.failed_property}: {verdict.reason} {verdict.details}")
    return found


@pytest.mark.parametrize(
    "number",
    [
        number if number == "01" else pytest.param(number, marks=pytest.mark.full)
        for number in WORKBOOK.labs
        if WORKBOOK.lab(number).has_exercises
    ],
)
def test_answers_in_numpys_numbers_pass(number, tmp_path):
    # A process of its own: in this one the types of the checks' own helpers are checked, too.
    ran = subprocess.run(
        [sys.executable, __file__, number, tmp_path], capture_output=True, text=True, timeout=600, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


if __name__ == "__main__":
    for line in refused(sys.argv[1], Path(sys.argv[2])):
        print(line)
