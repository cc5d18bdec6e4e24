"""What an exercise is: its facts, and below them its check, in `<chapter>/exercises/<topic>.py`.

GREEDY = exercise("1.3", "The greedy loop", "greedy", points=3, minutes=6)
GREEDY.objective = "write the loop of generation"
GREEDY.hints = ("Symptom.", "Cause.", "Nudge.")

@GREEDY.check("picks the most likely token", length=(1, 7))
def picks_the_argmax(answer, draw, length):
    '''Which row predicts the next token?'''
    ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from twophase_labs.machine.questions import Number, Question

Kind = Literal["code", "kernel", "prediction", "matching", "choice", "numeric"]
Need = Literal["cpu", "triton", "gpu", "model"]
Test = Callable[..., None]
Cases = tuple[Mapping[str, Any], ...]
T = TypeVar("T", bound=Test)

MAX_HINTS = 3


def cases(**columns: Sequence[Any]) -> Cases:
    """`cases(new=(1, 4), cached=(0, 5))`: first new 1 and cached 0, then new 4 and cached 5."""
    return tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


@dataclass(frozen=True)
class Property:
    """One named behaviour of a right answer.

    Attributes:
        name: Completes 'your answer ...': 'returns one number per token', 'leaves its inputs alone'.
        test: Called as `test(answer, draw, **case)`; raises `Rejected` (see checks.py) or returns. `answer` has the
            learner's objects as attributes, `draw` makes random inputs.
        hint: What to tell a learner whose answer fails here.
        cases: Smallest first; the first that fails is shown.
    """

    name: str
    test: Test
    hint: str
    cases: Cases = ({},)


@dataclass
class Exercise:
    """One exercise.

    Attributes:
        id: Chapter and number, '1.3'; the cell carries the tag `exercise:1.3`.
        names: What the cell must define: functions, classes or the variable that holds an answer.
        is_extra: Not needed to know the lab's subject: its points are counted beside the grade, as a bonus.
        minutes: Expected time; `lines` expected size of the answer; `difficulty` 1 to 3.
        needs: 'cpu' always works; where another is missing the exercise is 'not run here'.
        uses: Ids of exercises whose answers this one calls. One that doesn't pass is replaced by the reference.
        hints: Up to three: symptom, cause, nudge.
        checks: For code and kernels, in the order of telling.
        question: For the other kinds.
        compiled: Of a kernel: one more test, for `check` in a notebook. It is called as a property's once all of them
            hold, with a kernel that is compiled for a GPU and emulated in the place of the one that runs here.
        time_limit_s: Of the processor (see `limits.Allowance`), for the cell and for the whole check;
            `memory_limit_gib` is on top of what an empty check needs.
    """

    id: str
    title: str
    kind: Kind
    names: tuple[str, ...]
    points: int
    minutes: int
    objective: str = ""
    hints: tuple[str, ...] = ()
    checks: tuple[Property, ...] = ()
    question: Question | None = None
    difficulty: int = 1
    lines: int = 1
    needs: tuple[Need, ...] = ("cpu",)
    uses: tuple[str, ...] = ()
    time_limit_s: int | float = 20
    memory_limit_gib: int | float = 4
    is_extra: bool = False
    compiled: Test | None = None

    def check(self, name: str, *given: Mapping[str, Any], hint: str = "", **columns: Sequence[Any]) -> Callable[[T], T]:
        """The function below this decorator tests the property of that name. Properties are told in their order.

        Args:
            given: The cases; or `columns` has each argument's values (see `cases`).
            hint: In place of the function's docstring.
        """

        def add(test: T) -> T:
            said = hint or " ".join((test.__doc__ or "").split())
            self.checks += (Property(name, test, said, given or cases(**columns) or ({},)),)
            return test

        return add

    def validate(self) -> None:
        """Refuse an exercise that makes no sense, once it has its checks."""
        is_code = self.kind in ("code", "kernel")
        rules = {
            "names something to define": bool(self.names),
            "is worth points": self.points > 0,
            "has at most three hints": len(self.hints) <= MAX_HINTS,
            "has difficulty 1 to 3": self.difficulty in (1, 2, 3),
            "has checks if it is code, a question if it is not": bool(self.checks) == is_code != bool(self.question),
            "a question has one name": is_code or len(self.names) == 1,
            "a prediction is a Number": self.kind != "prediction" or isinstance(self.question, Number),
            "is a kernel if it is compiled": self.compiled is None or self.kind == "kernel",
            "has distinct property names": len({p.name for p in self.checks}) == len(self.checks),
        }
        broken = [f"an exercise {rule}" for rule, holds in rules.items() if not holds]
        broken += [f"{p.name!r} needs a hint, its function's docstring" for p in self.checks if not p.hint]
        if broken:
            raise ValueError(f"exercise {self.id} breaks a rule: {'; '.join(broken)}")

    @property
    def worth(self) -> str:
        """'1 point', '4 points', '2 extra points'."""
        return f"{self.points} {'extra ' * self.is_extra}point{'s' * (self.points != 1)}"

    @property
    def is_code(self) -> bool:
        return self.kind in ("code", "kernel")

    @property
    def lab(self) -> str:
        """'01' for exercise 1.3."""
        return f"{int(self.id.partition('.')[0]):02d}"

    @property
    def properties(self) -> tuple[Property, ...]:
        """What is checked, in order; a question's are made from its answer.

        A prediction earns its point when it is committed before the measurement, right or wrong, so all that is checked
        is that it is a number: the grader, which sees the file alone, agrees with the notebook.
        """
        if self.question is None:
            return self.checks
        steps = self.question.properties()
        return tuple(
            Property(name, _on_value(self.names[0], test), hint)
            for name, test, hint in (steps[:1] if self.kind == "prediction" else steps)
        )


def exercise(
    id: str, title: str, names: str = "", kind: Kind = "code", *, points: int, minutes: int, **facts: Any
) -> Exercise:
    """An exercise, whose objective, hints, checks or question follow. A question's name comes from its id."""
    names = names or f"{'guess' if kind == 'prediction' else 'answer'}_{id.replace('.', '_')}"
    if kind == "kernel":
        facts.setdefault("needs", ("triton",))
    return Exercise(id, title, kind, tuple(names.split()), points, minutes, **facts)


def _on_value(name: str, test: Callable[[Any], None]) -> Test:
    return lambda answer, draw: test(getattr(answer, name))
