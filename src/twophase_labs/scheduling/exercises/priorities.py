"""4.10 Priorities that age."""

from typing import Any

from twophase_labs.machine.checks import Draw, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.ranks import is_rank

AGED = exercise("4.10", "Priorities that age", "aged_rank", points=3, minutes=8, lines=3, difficulty=2, time_limit_s=10)
AGED.objective = "bound starvation with an order that never has to be sorted again"
AGED.hints = (
    "Tuples compare from the left, so the last entry decides ties.",
    "Compare priority - wait / patience of two requests: `now` stands on both sides, so it drops out.",
    "What is left says when a request seems to have come: its arrival, and for each level some seconds later. How "
    "many?",
)

Asked = tuple[int, float, int]  # priority, arrival, number


def require_first(answer: Any, first: Asked, second: Asked, patience_s: float | None) -> None:
    ranks = [key_of(answer.aged_rank(*one, patience_s)) for one in (first, second)]
    if ranks[0] == ranks[1]:
        reject(f"two requests have the same rank, {ranks[0]!r}", told(first), told(second))
    if not ranks[0] < ranks[1]:
        patience = "no ageing" if patience_s is None else f"patience {patience_s:.3g} s"
        reject(
            f"request {second[2]} goes before request {first[2]}; it should be the other way round ({patience})",
            f"{told(first)}: rank {ranks[0]!r}",
            f"{told(second)}: rank {ranks[1]!r}",
        )


def key_of(rank: Any) -> tuple[Any, ...]:
    """As the engine asks for it; NumPy's numbers are numbers."""
    if not is_rank(rank):
        reject(f"the sort key is {rank!r}; it should be a tuple of numbers")
    return rank


def told(one: Asked) -> str:
    return f"request {one[2]}: priority {one[0]}, arrival {one[1]:.3f} s"


@AGED.check("serves better priorities first", patience_s=(None, 10.0))
def better_priority_first(answer: Any, draw: Draw, patience_s: float | None) -> None:
    """Smaller numbers are better; with the same arrival they go first, ageing or not."""
    arrival_s = draw.random.uniform(0, 100)
    require_first(answer, (0, arrival_s, 7), (1, arrival_s, 3), patience_s)
    require_first(answer, (2, arrival_s, 9), (5, arrival_s, 8), patience_s)


@AGED.check("serves equals by arrival", patience_s=(None, 10.0))
def equals_by_arrival(answer: Any, draw: Draw, patience_s: float | None) -> None:
    # Numbers count up with arrival, as the engine gives them.
    """With the same priority the one that came first; at the same moment the smaller number. No keys are equal."""
    require_first(answer, (1, 3.0, 3), (1, 20.5, 12), patience_s)
    require_first(answer, (1, 5.0, 3), (1, 5.0, 4), patience_s)


@AGED.check("is strict without ageing")
def strict_for_ever(answer: Any, draw: Draw) -> None:
    """patience_s None: waiting counts for nothing."""
    require_first(answer, (0, 1e6, 50_000), (1, 0.0, 0), None)


@AGED.check("lets those that waited pass", num_levels=(2, 5, 200))
def ages(answer: Any, draw: Draw, num_levels: int) -> None:
    """A level is worth patience_s seconds of waiting: more patience, slower ageing."""
    # At any moment when both wait, the smaller of priority - wait / patience goes first.
    for _ in range(30):
        patience_s = draw.random.uniform(0.5, 60)
        early, late = sorted(draw.random.uniform(0, 200) for _ in range(2))
        one, other = (draw.integer(0, num_levels), early, 10), (draw.integer(0, num_levels), late, 11)
        now_s = late + draw.random.uniform(0, 50)
        aged = [priority - (now_s - arrival_s) / patience_s for priority, arrival_s, _ in (one, other)]
        if abs(aged[0] - aged[1]) > 1e-6:
            first, second = (one, other) if aged[0] < aged[1] else (other, one)
            require_first(answer, first, second, patience_s)


@AGED.check("lets the number decide ties")
def number_decides(answer: Any, draw: Draw) -> None:
    """With ageing only the moment counts at which a request seems to have come, and then its number; a patience of
    0 is a patience: a level is worth nothing."""
    # Two requests that seem to have come at the same moment; and a patience of 0, with which all are equal.
    require_first(answer, (2, 0.0, 1), (0, 20.0, 5), 10.0)
    require_first(answer, (0, 20.0, 5), (2, 0.0, 9), 10.0)
    try:
        require_first(answer, (3, 0.0, 1), (0, 5.0, 2), 0.0)
        require_first(answer, (3, 5.0, 1), (0, 5.0, 2), 0.0)
    except ZeroDivisionError:
        pass  # priority + arrival / patience is right as well, and has no answer to 0


@AGED.check("bounds by how much one is overtaken")
def bounded(answer: Any, draw: Draw) -> None:
    """Three levels and a patience of 10 s: no request that comes more than 30 s later goes first."""
    # Levels apart times patience is how much later one may come and still pass.
    require_first(answer, (3, 0.0, 0), (0, 30.1, 1), 10.0)
    require_first(answer, (0, 29.9, 1), (3, 0.0, 0), 10.0)
