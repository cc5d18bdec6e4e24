"""Notebooks from one source: `labsolutions/NN_name.py` (jupytext percent format) is what an author edits.

    python -m twophase.workbook.build            rebuild every notebook
    python -m twophase.workbook.build --check    fail if a notebook no longer matches its source

`labsolutions/NN_name.ipynb` is the executed notebook, `labs/NN_name.ipynb` the learner's, without outputs. Cell ids
follow from the position and nothing is stamped with a time, so a rebuild changes only what the source changed.
"""

import argparse
import copy
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

CELL_TIMEOUT_S = 180
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_source(path: Path) -> NotebookNode:
    """The notebook a percent-format file describes, with stable ids and no outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = NotebookNode(copy.deepcopy(METADATA))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        cell.id = f"{path.stem.replace('_', '-')}-{index:03d}"
        cell.metadata = NotebookNode({key: value for key, value in cell.metadata.items() if key == "tags"})
    nbformat.validate(notebook)
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """A copy with the outputs of a run in a fresh kernel; raises nbclient's error at the first cell that fails."""
    executed = copy.deepcopy(notebook)
    client = NotebookClient(
        executed, timeout=CELL_TIMEOUT_S, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return executed


def learner_path(source: Path, root: Path) -> Path:
    return root / "labs" / f"{source.stem}.ipynb"


def to_text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def build(source: Path, root: Path) -> None:
    """Write the executed and the learner's notebook of one source."""
    notebook = read_source(source)
    solved = execute(notebook, source.parent)
    source.with_suffix(".ipynb").write_text(to_text(solved))
    learner_path(source, root).write_text(to_text(notebook))


def drift(source: Path, root: Path) -> list[str]:
    """What no longer matches the source, in words; outputs are nbval's business."""
    notebook = read_source(source)
    found = []
    learner, solved = learner_path(source, root), source.with_suffix(".ipynb")
    for path in (learner, solved):
        if not path.exists():
            found.append(f"{path.relative_to(root)} is missing")
    if found:
        return found
    if learner.read_text() != to_text(notebook):
        found.append(f"{learner.relative_to(root)} differs from {source.relative_to(root)}")
    cells = nbformat.read(solved, as_version=4).cells
    if [(c.id, c.cell_type, c.source) for c in cells] != [(c.id, c.cell_type, c.source) for c in notebook.cells]:
        found.append(f"{solved.relative_to(root)} differs from {source.relative_to(root)}")
    elif any(c.cell_type == "code" and c.execution_count is None for c in cells):
        found.append(f"{solved.relative_to(root)} was not executed")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a notebook drifted")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    args = parser.parse_args(argv)
    sources = sorted((args.root / "labsolutions").glob("[0-9][0-9]_*.py"))
    if not sources:
        print(f"no labsolutions/NN_name.py under {args.root}; run this in the repository's top folder", file=sys.stderr)
        return 2
    if not args.check:
        for source in sources:
            print(f"building {source.stem}", flush=True)
            build(source, args.root)
        return 0
    problems = [problem for source in sources for problem in drift(source, args.root)]
    for problem in problems:
        print(f"drift: {problem}; run `make labs`", file=sys.stderr)
    if not problems:
        print(f"{len(sources)} notebook(s) match their source")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
