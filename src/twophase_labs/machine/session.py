"""What a learner calls in a notebook: `check`, `hint`, `reveal`, `measured`, `use`, `reference`."""

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any, no_type_check

from twophase_labs.machine.cards import AMBER, GREEN, Card, note_card, verdict_card, with_skeleton
from twophase_labs.machine.checks import shown
from twophase_labs.machine.exercise import MAX_HINTS, Exercise
from twophase_labs.machine.judge import Judge, Verdict
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError
from twophase_labs.machine.progress import DIRECTORY_VARIABLE, Progress, as_count, progress_path
from twophase_labs.machine.questions import Number, finite_number
from twophase_labs.machine.solved import run_reference


class Session:
    """One lab being worked on in this process: its judge, its progress file, and what passed so far."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.progress = Progress(progress_path(folder / f"{lab.name}.ipynb"))
        self.references = run_reference(lab)
        num_blanks = {exercise: len(template.blanks) for exercise, template in lab.templates.items()}
        self.judge = Judge(lab.exercises, self.references, num_blanks)
        self._verdicts: dict[str, tuple[tuple[Any, ...], Verdict]] = {}
        self._own: dict[str, tuple[Any, ...]] = {}  # the learner's last objects, while the reference is in their place

    def verdict(self, exercise: Exercise, namespace: MutableMapping[str, Any], seed: int | None = None) -> Verdict:
        """Judge afresh, first settling for which of the exercises it uses the reference must stand in."""
        fall_back = self._fall_back(exercise, namespace)
        found = self.judge.judge(exercise, namespace, fall_back=fall_back, seed=seed)
        objects = self._objects(exercise, namespace)
        self._verdicts[exercise.id] = (objects, found)
        if found.verdict not in ("by_reference", "missing"):
            self._own[exercise.id] = objects
        return found

    def compiled(self, exercise: Exercise, namespace: MutableMapping[str, Any], verdict: Verdict) -> Verdict:
        """A passed verdict, with what became of the kernel's compiled code; failed if that does something else."""
        from twophase_labs.machine.compiled import judge_compiled

        answer = {name: namespace[name] for name in exercise.names}
        with self.judge.using_references(namespace, self._fall_back(exercise, namespace)):
            found = judge_compiled(exercise, answer, verdict)
        self._verdicts[exercise.id] = (self._objects(exercise, namespace), found)
        return found

    def known(self, exercise: Exercise, namespace: MutableMapping[str, Any]) -> Verdict:
        """The last verdict, if it was on these very objects; judged now otherwise."""
        objects, found = self._verdicts.get(exercise.id, ((), None))
        now = self._objects(exercise, namespace)
        if found is not None and len(objects) == len(now) and all(a is b for a, b in zip(objects, now, strict=True)):
            return found
        return self.verdict(exercise, namespace)

    def _fall_back(self, exercise: Exercise, namespace: MutableMapping[str, Any]) -> tuple[str, ...]:
        uses = [self.lab.exercise(other) for other in self.lab.all_uses(exercise.id)]
        return tuple(other.id for other in uses if not self.known(other, namespace).passed)

    def hand_out(self, exercise: Exercise) -> Any:
        """The reference's objects, remembered, so that they are not taken for the learner's under the same names."""
        found = [self.references[name] for name in exercise.names]
        found = found if exercise.is_code else [_marked(value) for value in found]
        self.judge.handed_out += [f for f in found if not any(f is known for known in self.judge.handed_out)]
        return tuple(found) if len(found) > 1 else found[0]

    def forget_own(self, exercise: Exercise) -> None:
        """The learner has asked for the reference by name."""
        self._own.pop(exercise.id, None)

    def broken(self, exercises: Sequence[Exercise], namespace: MutableMapping[str, Any]) -> list[str]:
        """Ids of those that do not pass by themselves; if there are none, all names are the learner's own objects.

        `centred = use("1.3")` gives the reference as long as 1.1, which it calls, does not pass. Once that does, the
        learner's own 1.3 takes its name again, whichever cells were run in between.
        """
        given: dict[str, Any] = {}
        for exercise in exercises:
            now, own = self._objects(exercise, namespace), self._own.get(exercise.id)
            are_given = [self.judge.is_reference(exercise, n, v) for n, v in zip(exercise.names, now, strict=True)]
            if own is not None and any(are_given):
                given |= dict(zip(exercise.names, now, strict=True))
                namespace.update(zip(exercise.names, own, strict=True))
        found = [exercise.id for exercise in exercises if not self.known(exercise, namespace).passed]
        if found:
            namespace.update(given)
        return found

    @staticmethod
    def _objects(exercise: Exercise, namespace: MutableMapping[str, Any]) -> tuple[Any, ...]:
        return tuple(namespace.get(name) for name in exercise.names)


_sessions: dict[str, Session] = {}  # by lab number: one per kernel, or the one a grader put here


def adopt(session: Session) -> None:
    """Let `check` and its kin use this session for its lab (the grader's, in a process of its own)."""
    _sessions[session.lab.number] = session


def _here(exercise: Any) -> tuple[Session, Exercise]:
    if not isinstance(exercise, str):
        raise WorkbookError(f'the exercise is named by a string, as in check("1.3"); got {exercise!r}')
    number = f"{exercise.partition('.')[0]:0>2}"
    if number not in _sessions:
        folder = Path(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd())
        adopt(Session(Workbook.find().lab_of(exercise), folder))
    session = _sessions[number]
    return session, session.lab.exercise(exercise)


@no_type_check  # a checker's wrapper would stand between these frames
def _callers_namespace() -> MutableMapping[str, Any]:
    return sys._getframe(2).f_globals


@no_type_check
def check(exercise: str, *, seed: int | None = None) -> Card:
    """Check your answer to an exercise now. A prediction is committed by its first check, and that earns its point.

    Args:
        seed: Of the random inputs, to repeat a case that failed.
    """
    namespace = _callers_namespace()
    session, found = _here(exercise)
    verdict = session.verdict(found, namespace, seed)
    if verdict.passed and found.compiled is not None:
        verdict = session.compiled(found, namespace, verdict)
    if verdict.verdict in ("not_attempted", "missing", "not_run_here", "by_reference"):
        entry = session.progress.of(exercise)
    else:
        entry = session.progress.record(exercise, lambda entry: _count(entry, verdict))
    if found.kind == "prediction" and verdict.passed:
        return _committed(session, found, namespace[found.names[0]])
    notes = session.progress.take_notes()
    if entry.get("verdict") == "passed" and not verdict.passed:
        notes = ("passed before, and your progress keeps that; this version does not pass", *notes)
    return verdict_card(found, verdict, as_count(entry.get("attempts")), notes)


def _count(entry: dict[str, Any], verdict: Verdict) -> None:
    entry["attempts"] = as_count(entry.get("attempts")) + 1
    if entry.get("verdict") != "passed":
        entry["verdict"] = verdict.verdict


def _committed(session: Session, exercise: Exercise, value: Any) -> Card:
    """Record a first prediction unless the measurement was there before it, and say what stands."""
    written = finite_number(value)
    assert written is not None  # it passed

    def commit(entry: dict[str, Any]) -> None:
        if finite_number(entry.get("measured")) is None and finite_number(entry.get("prediction")) is None:
            entry["prediction"] = float(written)
        elif finite_number(entry.get("prediction")) is None:
            entry["late_prediction"] = float(written)

    entry = session.progress.record(exercise.id, commit)
    first, found = finite_number(entry.get("prediction")), finite_number(entry.get("measured"))
    lines = []
    if first is None:
        lines.append(("written", f"{written:g}{_unit(exercise)}, after the measurement; predict before it next time"))
    else:
        lines.append(("committed", f"{first:g}{_unit(exercise)}"))
        if first != written:
            lines.append(("", f"Your first prediction stands; {written:g} came later."))
    if found is None:
        lines.append(("next", "Run the measurement. The point is yours, however close the number comes."))
    else:
        lines += _beside(exercise, first, found)[0]
    lines += [("note", note) for note in session.progress.take_notes()]
    return Card("✓", f"{exercise.id} {exercise.title}: predicted, {exercise.worth}", GREEN, tuple(lines))


def _beside(exercise: Exercise, guess: int | float | None, found: int | float) -> tuple[list[tuple[str, str]], bool]:
    """A measurement beside what was predicted, as lines of a card, and whether the two are close."""
    question = exercise.question
    assert isinstance(question, Number)
    lines = [("measured", f"{found:.4g}{_unit(exercise)}")]
    is_close = guess is not None and question.accepts(guess, found)
    if guess is not None and not is_close:
        lines.append(("so", f"{question.distance(guess, found)}; {question.tolerance()} would have been close"))
    return lines, is_close


def _unit(exercise: Exercise) -> str:
    return f" {exercise.question.unit}".rstrip() if isinstance(exercise.question, Number) else ""


def measured(exercise: str, value: Any) -> Card:
    """What the measurement gave, beside what was predicted. Stands at the end of the measuring cell."""
    session, found = _here(exercise)
    if not isinstance(found.question, Number):
        raise WorkbookError(f"exercise {exercise} is no prediction; it is of kind {found.kind!r}")
    result = finite_number(value)
    if result is None:
        raise WorkbookError(f"what was measured for exercise {exercise} should be a finite number; got {shown(value)}")
    entry = session.progress.record(exercise, lambda entry: entry.update(measured=float(result)))
    guess = finite_number(entry.get("prediction"))
    lines, is_close = _beside(found, guess, result)
    if guess is None:
        late = finite_number(entry.get("late_prediction"))
        what = "nothing yet" if late is None else f"{late:g}{_unit(found)}, but after the measurement"
        lines.append(("predicted", f"{what}; next time commit yourself first, it is what makes the number stick"))
        return note_card(f"{exercise} {found.title}: measured", lines)
    lines.insert(0, ("predicted", f"{guess:g}{_unit(found)}"))
    mark, colour = ("✓", GREEN) if is_close else ("≠", AMBER)
    return Card(mark, f"{exercise} {found.title}: {'close' if is_close else 'surprised?'}", colour, tuple(lines))


def hint(exercise: str) -> Card:
    """The next hint: first the symptom, then the cause, then a nudge. How many you took is recorded."""
    session, found = _here(exercise)
    if not found.hints:
        line = ("instead", "check() tells what fails and why")
        if found.kind == "prediction":  # which cannot fail
            line = ("why", "a prediction has no hints: commit to a number, the measurement follows")
        return note_card(f"{exercise} {found.title}: no hints", [line])
    taken = as_count(session.progress.of(exercise).get("hints"))
    shown = min(taken + 1, len(found.hints), MAX_HINTS)
    session.progress.record(exercise, lambda entry: entry.update(hints=shown))
    hints = [with_skeleton(text) for text in found.hints[:shown]]
    lines = [(f"hint {number}", words) for number, (words, _) in enumerate(hints, start=1)]
    code = "\n\n".join(code for _, code in hints if code)
    rest = len(found.hints) - shown
    then = f"{rest} more to come" if rest else f'`reveal("{exercise}")` shows the solution; the report will say so'
    lines.insert(len(lines) - bool(code), ("then", then))  # code stands last on the card, below the hint it belongs to
    return note_card(f"{exercise} {found.title}: hint {shown} of {len(found.hints)}", lines, code)


def reveal(exercise: str) -> Card:
    """The solution, as text. That it was looked at is recorded and shown in the report."""
    session, found = _here(exercise)
    session.progress.record(exercise, lambda entry: entry.update(revealed=True))
    lines = [("recorded", "the report will say that the solution was looked at; points are not taken away")]
    return note_card(f"{exercise} {found.title}: solution", lines, session.lab.templates[exercise].filled())


def reference(exercise: str) -> Any:
    """The reference's answer, to go on with: `greedy_generate = reference("1.3")`. It is worth no points."""
    session, found = _here(exercise)
    if session.judge.is_judging:
        raise WorkbookError("an answer may not call the reference")
    print(f"reference: {', '.join(found.names)} (exercise {exercise})")
    session.forget_own(found)
    return session.hand_out(found)


@no_type_check
def use(exercise: str) -> Any:
    """Your answer if it and all that it calls pass their checks, else the reference's; says which."""
    namespace = _callers_namespace()
    session, found = _here(exercise)
    if session.judge.is_judging:
        raise WorkbookError("an answer may not call the reference")
    # An answer may have passed with the reference standing in for what it calls; here nothing would.
    needed = [found, *(session.lab.exercise(other) for other in session.lab.all_uses(exercise))]
    broken = session.broken(needed, namespace)
    if not broken:
        print(f"yours: {', '.join(found.names)} (exercise {exercise})")
        own = tuple(namespace[name] for name in found.names)
        return own if len(own) > 1 else own[0]
    is_skipped = session.lab.exercise(broken[0]).is_extra and not session.progress.of(broken[0]).get("attempts")
    why = "is optional and not tried" if is_skipped else "does not pass yet"
    print(f"reference: {', '.join(found.names)} (exercise {broken[0]} {why})")
    return session.hand_out(found)


def _marked(value: Any) -> Any:
    """An equal value that is an object of its own, unlike the 1 or "b" that a learner writes."""
    kind = type(value)
    return type(kind.__name__, (kind,), {})(value) if kind in (int, float, str, dict, list, tuple) else value
