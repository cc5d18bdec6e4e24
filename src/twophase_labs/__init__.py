"""The workbook machine: notebooks from one source, exercises, checks, grades.

Author's guide
==============

A lab is three things: the notebook's source, the exercises with their checks, the bank that proves the checks.

    labsolutions/01_autoregression.py             jupytext percent format, solved; the only notebook file you edit
    src/twophase_labs/autoregression/exercises/   exercises with their checks; a file per section
    src/twophase_labs/autoregression/*.py         what the notebook imports: pictures, small models
    tests/labs/autoregression/answers_*.py        BANKS = {"1.3": (wrong(...), ..., right(...))}, a file per section

    python -m twophase_labs.machine.build 01            write labsolutions/*.ipynb (executed) and labs/*.ipynb (blanks)
    python -m twophase_labs.machine.build --check       drift, leaks of solutions, lint; part of CI
    python -m twophase_labs.machine.prove 01            as shipped 0 points, solved 100 %, the table of the bank

**The notebook.** Cells carry tags: `setup` (imports, constants, models; these run before each graded check, so
load a model through a cached function of your lab's package, for the notebook's check runs them once more),
`exercise:1.3` (exactly one cell per exercise, and only it defines the exercise's names), `solution` (only in
labsolutions). In markdown, a line `<!-- card 1.3 -->` becomes the exercise's title, points, minutes and size.
`<!-- minutes: 14 -->` under a `## ` heading says how long the section takes, reading and thinking included (`14 + 8`: 8
for *Going further*), and `<!-- map -->` becomes the table of the sections.
`<!-- glossary -->` becomes the table of terms. No magics. `# NBVAL_CHECK_OUTPUT` in a cell's first line says that its
output is the same in every run: for all that is not timed.

    # %% tags=["setup"]
    import torch
    from twophase_labs import ____, check, hint, measured, reference, reveal, use

    # %% [markdown]
    # <!-- card 1.3 -->
    # One sentence, the formula, an executable spec.

    # %% tags=["exercise:1.3"]
    def greedy(model, ids, num_new):
        for _ in range(num_new):
            logits = model(ids)
            ids = torch.cat([ids, logits[-1:].argmax(-1)])  # SOLUTION `logits[-1:]`: the row of the last position
        return ids

    # %%
    check("1.3")

**Blanks.** `x = value  # SOLUTION: what goes here` blanks the right-hand side (or a condition, an iterable, a returned
or bare expression); a backquoted part blanks only that; `# BEGIN SOLUTION: what goes here` and `# END SOLUTION` fence
lines in a function (see blanks.py). The learner reads `____("1.3", 1, "the row of the last position")`: inside a
function it raises when reached, at a cell's top level it is a value that raises when used. A measuring cell works
untouched if it says `greedy = use("1.3")`, under the learner's own name: the learner's function if it passes, else the
reference, labelled.

**Exercises** are made by `exercise(...)` (exercise.py). Code and kernels have checks, properties tested in the order in
which they follow it; every property has its own hint, the docstring, which fits when it is the first to fail:

    GREEDY = exercise("1.3", "The greedy loop", "greedy", points=3, minutes=6)
    GREEDY.objective = "write the loop of generation"
    GREEDY.hints = ("Symptom.", "Cause.", "Nudge.")

    @GREEDY.check("picks the most likely token", length=(1, 7))
    def picks_the_argmax(answer, draw, length):
        '''Which row predicts the next token?'''
        ids = draw.integers(0, 50, length)
        expected = oracle(ids, 3)  # first: the answer might modify its input
        compare(answer.greedy(toy_model, ids, 3), expected, what="the ids", axes=("position",))

`answer` holds the learner's objects by name; `draw` makes random inputs, new in each run; cases go from small to
large. Several columns run side by side, first with first; `{...}, {...}` are cases written out. A narrow property
goes before a random one, which would reject everything first. Helpers are in checks.py: `compare`, `unchanged`,
`fresh`, `finite`, `raises`, `reject`. The oracle is independent of the solution: a naive loop, arithmetic,
transformers. Test behaviour, never how it was written.
`uses=("1.1",)` names exercises whose answers this one calls; a check never sees a broken one, the reference stands in
and is labelled.
`lines=7, difficulty=2` go on the card; `is_extra=True` for what stands under *Going further*: its points are a bonus.
An exercise in the middle of a lab takes the next free number: progress is stored under the ids, so none changes.
`needs=("cpu",)`, `("triton",)`, `("gpu",)`, `("model",)`; what is missing makes the exercise 'not run here'.

An exercise is *open* if its one blank is the body of a function, all but the docstring. Its docstring names shapes or
units and has two examples (`>>>`), which a test runs; the last of its three hints is a skeleton, several lines of code,
shown as it stands.

**Questions** have `question = Choice(...)`, `Matching(...)` or `Number(...)` (questions.py), and one name, a top-level
`answer_1_2 = "b"  # SOLUTION: one letter`.
A prediction has kind 'prediction' and a `Number`; it earns its point when it is committed before the measurement, right
or wrong: `check` commits the first one, `measured("1.4", value)` at the end of the measuring cell tells how close it
came, and the grader wants a number.

**Banks.** `wrong("drops the last token", "logits[-1:]", "logits[:-1]", by="picks the most likely token")` is the
solution with one text, which occurs once, replaced by another; more pairs may follow. In place of pairs:
`{1: "logits[:-1]"}`, blanks by number, the rest being right, or a whole cell. `right(title, ...)` likewise (bank.py).
Five to eight wrong answers and two different right ones per code exercise, one or two for a property. Edits that
mutate.py makes by itself are not written down. tests/labs/machine/test_labs.py proves every lab it finds. `prove
--exercise 1.3` proves one exercise; with `--seeds 20` it finds verdicts that luck decides, with `--mutate` small
edits of the solution that the check accepts. Such a survivor means a missing case; or it changes nothing, and stands
with its reason in tests/labs/<chapter>/equivalent.py.

The machine (machine/), file by file
====================================

    blanks.py, unfilled.py     marked answers in the source; the blank as the learner sees it
    exercise.py, questions.py  what an exercise is
    lines.py                   lines of source, numbered as Python does, and which are a learner's
    checks.py                  what checks are made of
    lab.py, solved.py          a lab's source and exercises; its solved cells, run
    sections.py                a lab by its sections, and their minutes
    lint.py, rules.py          rules for a lab's source, and for its text
    glossary.py                the terms of the course
    judge.py                   one answer against its check
    session.py, cards.py       check, hint, reveal in a notebook; verdicts to look at
    themes.py                  figures in a dark theme
    progress.py                the learner's file beside the notebook
    build.py                   notebooks from the source
    grading/                   a notebook file, graded in processes of its own
    bank.py, prove.py          right and wrong answers; the proofs of a lab's checks by them
    mutate.py                  a search for small edits of the solutions that the checks accept
"""

from typing import TYPE_CHECKING, Any

from twophase_labs.machine.themes import suit_dark_themes
from twophase_labs.machine.unfilled import ____

if TYPE_CHECKING:
    from twophase_labs.machine.session import check, hint, measured, reference, reveal, use

__all__ = ["____", "check", "hint", "measured", "reference", "reveal", "use"]
suit_dark_themes()


def __getattr__(name: str) -> Any:
    # The session imports torch; a command that only reads notebooks should not wait for it (PEP 562).
    if name in __all__:
        from twophase_labs.machine import session

        return getattr(session, name)
    raise AttributeError(f"module 'twophase_labs' has no attribute {name!r}")
