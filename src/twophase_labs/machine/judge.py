"""The one place where an answer meets its check; notebook and grader both come here."""

import base64
import inspect
import linecache
import random
import re
import secrets
import traceback
import types
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy.random
import torch

from twophase.core.errors import ModelFolderError
from twophase_labs.machine.checks import Draw, Rejected
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.limits import OutOfTime, time_limit
from twophase_labs.machine.lines import is_learners_file, python_lines
from twophase_labs.machine.unfilled import Unfilled, UnfilledError, blanks_left, empty_in_kernel

VerdictName = Literal[
    "passed", "failed", "not_attempted", "by_reference", "error", "timeout", "missing", "not_run_here"
]
MAX_PICTURE_BYTES = 500_000  # the grader's channel takes a verdict of a megabyte
STANDS_IN = "the reference stands in for your answer; it is worth no points"
NOT_YOURS = "not yours: the reference stands under this name; run your exercise's cell again"
# Triton's compiler quotes the kernel up to the place, marks it, and tells the matter last.
COMPILERS_PLACE = re.compile(r"at (?P<number>\d+):\d+:\n(?P<source>.+)\n *\^", re.DOTALL)
FAULTS_LINE = re.compile(r"(<exercise [^>]*>|\d+\.py|<?ipython-input-[^,]*), line (?P<number>\d+): (?P<code>.*)")
MISCALLED = re.compile(r"(?P<name>[\w.<>]+)\(\) (takes|missing|got)\b")


@dataclass(frozen=True)
class Verdict:
    """What became of one exercise.

    Attributes:
        reason: One line.
        details: Further lines: the case, where the first difference is, the learner's line that failed.
        hint: The hint that fits, or ''.
        failed_property: Name of the first property that does not hold.
        held: Names of the properties before it.
        notes: Fall-backs to the reference, and what else should be said whatever the verdict.
        picture: What went wrong, as a PNG in base64; or ''.
    """

    exercise: str
    verdict: VerdictName
    reason: str
    details: tuple[str, ...] = ()
    hint: str = ""
    failed_property: str = ""
    held: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    picture: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


@dataclass
class Judge:
    """Judges answers against one lab's exercises.

    Attributes:
        references: The reference's objects by name, for fall-backs and to recognise an answer that is the reference.
        num_blanks: Blanks per exercise as shipped, to tell 'not attempted' from 'half filled'.
        handed_out: What `use` and `reference` gave away of the reference; under a learner's name it is no answer.
    """

    exercises: Mapping[str, Exercise]
    references: Mapping[str, Any]
    num_blanks: Mapping[str, int]
    is_judging: bool = False  # while an answer runs; changed here only
    handed_out: list[Any] = field(default_factory=list)

    def judge(
        self,
        exercise: Exercise,
        namespace: MutableMapping[str, Any],
        *,
        fall_back: tuple[str, ...] = (),
        seed: int | None = None,
    ) -> Verdict:
        """Check the answer that stands in `namespace`.

        Args:
            fall_back: Ids of exercises whose names the reference provides for the time of this check.
            seed: Of the random inputs; None draws one.
        """
        early = self._before_running(exercise, namespace)
        if early is not None:
            return early
        answer = SimpleNamespace(**{name: namespace[name] for name in exercise.names})
        notes = tuple(f"checked with the reference's answer to {other}" for other in fall_back)
        with self.using_references(namespace, fall_back):
            verdict = self._run(exercise, answer, secrets.randbits(31) if seed is None else seed)
        return replace(verdict, notes=notes)

    def _before_running(self, exercise: Exercise, namespace: Mapping[str, Any]) -> Verdict | None:
        lacking = unavailable(exercise)
        if lacking:
            return Verdict(exercise.id, "not_run_here", lacking)
        absent = [name for name in exercise.names if name not in namespace]
        if absent:
            return Verdict(
                exercise.id, "missing", f"{absent[0]!r} is not defined", ("Run the cell of this exercise first.",)
            )
        if any(self.is_reference(exercise, name, namespace[name]) for name in exercise.names):
            return by_reference(exercise, NOT_YOURS)
        left = _blanks(exercise, namespace)
        if left and left.issuperset(range(1, self.num_blanks.get(exercise.id, 0) + 1)):
            return Verdict(exercise.id, "not_attempted", "not attempted yet", ("Every blank is still empty.",))
        for name in exercise.names:
            wanted = self.references.get(name)
            if callable(wanted) and not callable(namespace[name]):
                kind = "class" if isinstance(wanted, type) else "function"
                given = type(namespace[name]).__name__
                return Verdict(exercise.id, "failed", f"{name} should be a {kind}; it is a value of type {given}")
        return None

    def is_reference(self, exercise: Exercise, name: str, value: Any) -> bool:
        """Whether this very object is the reference's, or was handed out as such; an equal one of the learner's is not.

        Python keeps one object for all equal small numbers and short texts, so of these only a marked copy tells.
        """
        is_own = exercise.is_code and not isinstance(value, int | float | str | None)
        return (is_own and value is self.references.get(name, Unfilled)) or any(value is h for h in self.handed_out)

    def _run(self, exercise: Exercise, answer: SimpleNamespace, seed: int) -> Verdict:
        held: list[str] = []
        current: Property | None = None
        self.is_judging = True
        try:
            with _own_randomness(), time_limit(exercise.time_limit_s):
                for current in exercise.properties:
                    for case in current.cases:
                        seed_everything(seed)
                        _try(current, answer, case, seed)
                    held.append(current.name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            assert current is not None
            if exercise.kind == "kernel" and not isinstance(_own_error(error), Rejected | UnfilledError):
                empty = (empty_in_kernel(value, exercise.id) for value in vars(answer).values())
                error = next(filter(None, empty), error)
            return self._explain(exercise, current, error, tuple(held))
        finally:
            self.is_judging = False
        return Verdict(exercise.id, "passed", "every property holds", held=tuple(held))

    def _explain(self, exercise: Exercise, prop: Property, error: BaseException, held: tuple[str, ...]) -> Verdict:
        case = getattr(error, "case", "")
        verdict, reason, details = explain(error, exercise, self.references)
        error = _own_error(error)
        # The property's hint fits what the property found; an exception of the answer's own tells where it is.
        is_finding = verdict == "failed" and not isinstance(error, UnfilledError)
        hint = prop.hint if is_finding and not _is_miscalled(error, exercise) else ""
        where = (f"case: {case}",) if case and exercise.is_code else ()
        shown = error.picture if isinstance(error, Rejected) and len(error.picture) <= MAX_PICTURE_BYTES else b""
        picture = base64.b64encode(shown).decode()
        return Verdict(exercise.id, verdict, reason, (*where, *details), hint, prop.name, held, picture=picture)

    @contextmanager
    def using_references(self, namespace: MutableMapping[str, Any], fall_back: tuple[str, ...]) -> Iterator[None]:
        """Put the reference's objects in the learner's place, and the learner's back afterwards."""
        names = [name for other in fall_back for name in self.exercises[other].names]
        mine = {name: namespace[name] for name in names if name in namespace}
        namespace.update({name: self.references[name] for name in names if name in self.references})
        try:
            yield
        finally:
            for name in names:
                namespace.pop(name, None)
            namespace.update(mine)


def by_reference(exercise: Exercise, reason: str = STANDS_IN) -> Verdict:
    return Verdict(exercise.id, "by_reference", reason)


def _blanks(exercise: Exercise, namespace: Mapping[str, Any]) -> set[int]:
    return set().union(*(blanks_left(namespace[name], exercise.id) for name in exercise.names))


def _try(prop: Property, answer: SimpleNamespace, case: Mapping[str, Any], seed: int) -> None:
    try:
        prop.test(answer, Draw(seed), **case)
    except BaseException as error:
        shown = [f"{key} = {value!r}" for key, value in case.items()]
        error.case = ", ".join([*shown, f"seed {seed}"])  # type: ignore[attr-defined]
        raise


def explain(
    error: BaseException, exercise: Exercise, references: Mapping[str, Any]
) -> tuple[VerdictName, str, tuple[str, ...]]:
    """Verdict, reason and details for whatever a check or a cell raised."""
    place, error = _compilers_place(error), _own_error(error)
    if isinstance(error, Rejected):
        return "failed", _text(error), error.details
    line = learners_line(error)
    where = (line,) if line else ()
    if isinstance(error, UnfilledError):
        return "failed", _text(error), where
    if isinstance(error, ModelFolderError) and (lacking := _without_model()):
        return "not_run_here", lacking, ()
    if isinstance(error, OutOfTime):
        reason = f"still running after {exercise.time_limit_s:g} s of computing, and stopped"
        return "timeout", reason, (*where, "Look for a loop that never ends.")
    if isinstance(error, SystemExit):
        return "error", "your code ends the whole program (sys.exit or exit)", where
    if isinstance(error, RecursionError):
        return "error", "your function calls itself without end", where
    if _is_fault(error):
        named, *more = _text(error).strip().split("\n")
        verdict: VerdictName = "timeout" if isinstance(error, TimeoutError) else "failed"
        return verdict, named, tuple(_placed(text.strip()) for text in more)
    if type(error).__name__ == "KernelMistake":  # in a notebook: 'kernel, line 7 of the cell: x = y[3]\n  the matter'
        named, _, said = _text(error).partition("\n")
        if said:
            return "error", f"the kernel does not compile: {said.strip()}", (named.partition(", ")[2],)
        return "error", f"the kernel cannot be launched: {named}", where
    if "CUDA error" in _text(error):  # an access outside of memory ends the process's use of the GPU
        reason = f"the GPU has stopped: {_text(error)}".partition("\n")[0]
        return "error", reason, (*where, "Look for an index outside of a tensor. Then restart the kernel.")
    if isinstance(error, MemoryError) or "can't allocate memory" in _text(error):
        reason = f"it wants more memory than the {exercise.memory_limit_gib:g} GiB allowed here"
        return "error", reason, (*where, "Look for a shape that is much larger than it should be.")
    if _is_miscalled(error, exercise):
        return "failed", f"it cannot be called as the exercise asks: {_text(error)}", _signatures(exercise, references)
    said = _text(error).strip().split("\n")[-1 if _is_tritons(error) else 0]
    if place:
        return "error", f"the kernel does not compile: {said}", (place,)
    named = f"{type(error).__name__}: {said}".removesuffix(": ")
    if not line and _is_raised_by_triton(error):
        return "failed", f"the kernel does not compile: {named}", ()
    if not line and isinstance(error, Exception):
        return "failed", f"what it returned cannot be used: {named}", ()
    return "error", f"your code raised {named}", where


def _is_miscalled(error: BaseException, exercise: Exercise) -> bool:
    """Whether the check could not call the answer as it should: a TypeError that names the answer, from outside it."""
    called = MISCALLED.match(_text(error)) if isinstance(error, TypeError) else None
    return (
        called is not None
        and not learners_line(error)
        and not {"<lambda>", *exercise.names}.isdisjoint(called["name"].split("."))
    )


def _text(error: BaseException) -> str:
    """Its message, which may be made by the learner's code."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its message cannot be shown: __str__ raised {type(fault).__name__})"


def _own_error(error: BaseException) -> BaseException:
    """What happened in the answer, without the error that Triton, an engine or a check put around it."""
    while _is_tritons(error) and error.__cause__ is not None:
        error = error.__cause__
    inner: BaseException | None = error
    while inner is not None and not isinstance(error, Rejected):
        if learners_line(inner):
            return inner
        inner = inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__)
    return error


def _is_tritons(error: BaseException) -> bool:
    return type(error).__module__.startswith("triton")


def _compilers_place(error: BaseException | None) -> str:
    """'line 7 of the kernel: x = y[3]', where Triton's compiler stopped, as its innermost error says; else ''."""
    place = ""
    while error is not None and _is_tritons(error):
        if found := COMPILERS_PLACE.search(_text(error)):
            place = f"line {found['number']} of the kernel: {found['source'].splitlines()[-1].strip()}"
        error = error.__cause__
    return place


def _is_fault(error: BaseException) -> bool:
    """Whether a checked kernel was stopped on the CPU: an access outside of a tensor, a loop without an end."""
    return any(kind.__name__ == "KernelFault" for kind in type(error).__mro__) and _is_tritons(error)


def _placed(text: str) -> str:
    """A fault's line of a cell, '<exercise 3.8>, line 7: x = ...', as every other verdict has it; a package's stays."""
    found = FAULTS_LINE.fullmatch(text)
    return f"line {found['number']} of the cell: {found['code']}" if found else text


def _is_raised_by_triton(error: BaseException) -> bool:
    """Whether Triton, or what compiles for the CPU, refused a kernel without a place in it."""
    frames = traceback.extract_tb(error.__traceback__)
    return _is_tritons(error) or (bool(frames) and "triton" in Path(frames[-1].filename).parts)


def _signatures(exercise: Exercise, references: Mapping[str, Any]) -> tuple[str, ...]:
    lines = []
    for name in exercise.names:
        wanted = references.get(name)
        if isinstance(wanted, types.FunctionType):
            lines.append(f"the exercise asks for {name}{_plain_signature(wanted)}")
    return tuple(lines)


def _plain_signature(function: types.FunctionType) -> str:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def learners_line(error: BaseException) -> str:
    """'line 7: x = y[3]', the innermost frame of the traceback that is in a learner's cell."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_learners_file(frame.filename):
            return f"line {frame.lineno} of the cell: {(frame.line or '').strip()}"
    return ""


def run_cell(source: str, namespace: MutableMapping[str, Any], filename: str) -> None:
    """Execute a cell's source. Tracebacks and `inspect.getsource` (so `triton.jit` too) find its lines."""
    linecache.cache[filename] = (len(source), None, python_lines(source), filename)
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)  # type: ignore[arg-type]


def unavailable(exercise: Exercise) -> str:
    """What this machine lacks for the exercise, or ''."""
    if "gpu" in exercise.needs and not torch.cuda.is_available():
        return "needs a CUDA device"
    if "triton" in exercise.needs:
        from twophase_kernels._triton import KernelsUnavailableError, mode

        try:
            mode()
        except KernelsUnavailableError as error:
            return f"needs Triton: {error}"
    return _without_model() if "model" in exercise.needs else ""


def _without_model() -> str:
    """What to do where the model is not prepared; '' where it is."""
    from twophase_features.model_store.prepare import default_model_dir

    is_there = (default_model_dir() / "config.json").exists()
    return "" if is_there else "needs the model; run `twophase model prepare`"


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Whatever a check draws, the notebook's own random numbers go on as if it had not run."""
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def seed_everything(seed: int) -> None:
    """A learner's function that draws from a global generator is repeatable too."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
