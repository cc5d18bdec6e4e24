"""A lab as an autograder of Gradescope, https://gradescope-autograders.readthedocs.io/en/latest/specs/.

`pack` writes the zip that a lecturer uploads. The service unpacks it to /autograder/source, runs setup.sh once, as root
while it builds an image, then for each submission, in a fresh container, /autograder/run_autograder, which is a copy of
the one in the zip. That reads /autograder/submission and writes /autograder/results/results.json. Elsewhere
$AUTOGRADER_ROOT names the folder that stands for /autograder.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from twophase_features.model_store.prepare import INSTALL
from twophase_labs.machine.cards import LOOKS
from twophase_labs.machine.grading.folder import Submission, grade_folder
from twophase_labs.machine.grading.grade import Grader, Report, Result
from twophase_labs.machine.lab import Lab, Workbook

RESERVE_S = 60  # of the service's time limit, for starting and writing

SETUP = f"""#!/usr/bin/env bash
set -euo pipefail
root="${{AUTOGRADER_ROOT:-/autograder}}"
apt-get update
apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev python3-pip
python3 -m pip install uv || python3 -m pip install --break-system-packages uv
python3 -m uv venv --seed --python 3.12 "$root/venv"  # Ubuntu's own Python may be too old
cd "$root/source/course"
export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu  # torch without CUDA
for part in twophase twophase_server twophase_labs; do
    "$root/venv/bin/python" -m pip install -r "src/$part/requirements.txt"
done
"$root/venv/bin/python" -m {INSTALL}
export TWOPHASE_HOME="$root/model" PYTHONPATH=src:kernels
"$root/venv/bin/python" -c "from twophase_tools.cli.main import main; raise SystemExit(main(['model', 'prepare']))"
"""
RUN = """#!/usr/bin/env bash
root="${AUTOGRADER_ROOT:-/autograder}"
cd "$root/source/course"
export PYTHONPATH="$root/source/course/src:$root/source/course/kernels"
if [ -d "$root/model" ]; then export TWOPHASE_HOME="$root/model"; fi
exec "$root/venv/bin/python" -m twophase_labs.machine.grading.gradescope "$root"
"""


def pack(workbook: Workbook, lab: Lab, target: Path, only: frozenset[str], minutes: int | float) -> None:
    """Write the zip of one lab's autograder.

    Raises:
        OSError: it cannot be written.
    """
    settings = {"lab": lab.number, "only": sorted(only), "minutes": minutes, "package": workbook.package}
    with ZipFile(target, "w", ZIP_DEFLATED) as zipped:
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN), ("settings.json", json.dumps(settings))):
            entry = ZipInfo(name)  # without a time: equal courses give equal files
            entry.external_attr = 0o755 << 16
            zipped.writestr(entry, text, ZIP_DEFLATED)
        for path in _course(workbook.root):
            zipped.writestr(ZipInfo(f"course/{path.relative_to(workbook.root)}"), path.read_bytes(), ZIP_DEFLATED)


def _course(root: Path) -> Iterator[Path]:
    """All that grading needs: the code, and the labs' sources."""
    for folder in ("src", "kernels"):
        yield from sorted(p for p in (root / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    yield from sorted((root / "labsolutions").glob("[0-9][0-9]_*.py"))


def results(submissions: list[Submission], lab: Lab, only: frozenset[str]) -> dict[str, Any]:
    """What results.json holds: of several notebooks of the lab, the one of most points."""
    reports = [s.report for s in submissions if s.report is not None and s.report.lab == lab.name]
    if not reports:
        known = sum(e.points for e in lab.core if not only or e.id in only)
        said = [s.problem or f"{s.path.name} is no notebook of lab {lab.number}" for s in submissions]
        output = "; ".join(said) or f"no notebook was handed in; {lab.name}.ipynb is asked for"
        return {"score": 0, "output": output, "tests": [{"name": lab.name, "score": 0, "max_score": known}]}
    report = max(reports, key=lambda one: one.points)
    return {
        "score": report.points,  # extra points stand beside it, and count for nothing
        "execution_time": round(report.elapsed_s),
        "output": "\n".join([*report.warnings, f"isolation: {report.isolation}"]),
        "tests": [_test(result) for result in report.results],
    }


def _test(result: Result) -> dict[str, Any]:
    exercise, verdict = result.exercise, result.verdict
    hint = [f"Hint: {verdict.hint}"] if verdict.hint else []
    return {
        "number": exercise.id,
        "name": f"{exercise.title}{' (extra)' * exercise.is_extra}: {LOOKS[verdict.verdict][1]}",
        "score": result.points,
        "max_score": exercise.points,
        "status": "passed" if verdict.passed else "failed",
        "output": "\n".join([verdict.reason, *verdict.details, *hint, *verdict.notes]),
    }


def main(root: Path) -> None:
    """Grade /autograder/submission, where `root` is /autograder. What only a lecturer should see goes to stdout."""
    settings = json.loads((root / "source" / "settings.json").read_text(encoding="utf-8"))
    workbook = Workbook(root / "source" / "course", settings["package"])
    lab, only = workbook.lab(settings["lab"]), frozenset(settings["only"])
    with Grader(workbook, 1, only, 60 * settings["minutes"] - RESERVE_S) as grader:
        found = list(grade_folder(grader, root / "submission"))
    for submission in found:
        print(f"{submission.path.name}: {_summary(submission.report) if submission.report else submission.problem}")
        print(*submission.flags(), sep="\n")
    text = json.dumps(results(found, lab, only), indent=1)
    (root / "results" / "results.json").write_text(text, encoding="utf-8")


def _summary(report: Report) -> str:
    return f"{report.points} of {report.max_points} points in {report.elapsed_s:.0f} s ({report.isolation})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
