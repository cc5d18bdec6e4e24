"""4.1 The life of a request: states, and the ways between them."""

from collections.abc import Mapping
from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.scheduling.lives import IllegalTransition

# The oracle, as a list of ways; self-loops are none.
WAYS = frozenset(
    tuple(way.split(" -> "))
    for way in (
        "waiting -> prefill",
        "prefill -> decoding",
        "prefill -> preempted",
        "decoding -> preempted",
        "preempted -> prefill",
        "waiting -> finished",
        "prefill -> finished",
        "decoding -> finished",
        "preempted -> finished",
    )
)
STATES = ("waiting", "prefill", "decoding", "preempted", "finished")
ROUTES = {
    "waiting": ("waiting",),
    "prefill": ("waiting", "prefill"),
    "decoding": ("waiting", "prefill", "decoding"),
    "preempted": ("waiting", "prefill", "preempted"),
    "finished": ("waiting", "finished"),
}


def lived(answer: Any, *states: str) -> Any:
    """A life that went this way; every step of it must be allowed."""
    life = answer.Life()
    for state in states[1:]:
        try:
            life.become(state)
        except IllegalTransition as error:
            reject(f"{' -> '.join(states)} is a legal life, and it was refused at {state!r}", str(error))
    return life


def lives(answer: Any, draw: Draw, states: tuple[str, ...]) -> None:
    life = lived(answer, *states)
    compare(list(life.states), list(states), what="the states of this life", axes=("step",))


def says_so(answer: Any, draw: Draw, state: str) -> None:
    if not isinstance(answer.LEGAL, Mapping) or set(answer.LEGAL) != set(STATES):
        reject(f"LEGAL is {answer.LEGAL!r}, expected a dict with the five states as keys")
    got, expected = answer.LEGAL[state], {other for one, other in WAYS if one == state}
    if isinstance(got, str) or set(got) != expected:
        reject(f"LEGAL[{state!r}] is {got!r}, expected {expected or set()}")


def refuses(answer: Any, draw: Draw, come_from: str) -> None:
    for target in (*STATES, "paused", "decod", ""):
        if (come_from, target) in WAYS:
            continue
        life = lived(answer, *ROUTES[come_from])
        try:
            life.become(target)
        except IllegalTransition:
            continue
        reject(f"a request went from {come_from!r} to {target!r}, and nobody objected")


def refusing_changes_nothing(answer: Any, draw: Draw) -> None:
    life = lived(answer, "waiting", "prefill")
    try:
        life.become("waiting")
    except IllegalTransition:
        compare(list(life.states), ["waiting", "prefill"], what="the states after a refused change", axes=("step",))
        life.become("decoding")
        return
    reject("a request went from 'prefill' to 'waiting', and nobody objected")


def survives_random_lives(answer: Any, draw: Draw) -> None:
    for _ in range(30):
        life, states = answer.Life(), ["waiting"]
        for _ in range(25):
            state = draw.choice(STATES)
            allowed = (states[-1], state) in WAYS
            try:
                life.become(state)
            except IllegalTransition:
                if allowed:
                    reject(f"{states[-1]!r} to {state!r} was refused", f"the life so far: {' -> '.join(states)}")
                continue
            if not allowed:
                reject(f"{states[-1]!r} to {state!r} was allowed", f"the life so far: {' -> '.join(states)}")
            states.append(state)
        compare(list(life.states), states, what="the states of a random life", axes=("step",))


EXERCISES = (
    Exercise(
        id="4.1",
        title="Legal transitions",
        kind="code",
        names=("LEGAL", "Life"),
        points=2,
        minutes=7,
        lines=6,
        objective="know the states of a request and the ways between them",
        hints=(
            "Go through the table of states row by row and ask of each: what can happen to a request that is here?",
            "Two things can happen almost anywhere: somebody cancels it, and the memory it holds is taken away. "
            "The second only happens to a request that holds memory.",
            "What was preempted has lost its K and V, so it begins with a prefill again.",
        ),
        checks=(
            Property(
                "lives an ordinary life",
                lives,
                "Wait, read the prompt, write, end: every one of these steps is legal.",
                (
                    {"states": ("waiting", "prefill", "decoding", "finished")},
                    {"states": ("waiting", "prefill", "finished")},
                ),
            ),
            Property(
                "may lose its blocks and come back",
                lives,
                "Whoever holds blocks can be preempted, in its prefill as well. Its K and V are gone then, so there "
                "is one way back.",
                (
                    {"states": ("waiting", "prefill", "decoding", "preempted", "prefill", "decoding", "finished")},
                    {"states": ("waiting", "prefill", "preempted", "prefill", "preempted", "prefill", "decoding")},
                ),
            ),
            Property(
                "may be cancelled anywhere",
                lives,
                "A user closes the window: the request ends, wherever it stands, without having run even.",
                (
                    {"states": ("waiting", "finished")},
                    {"states": ("waiting", "prefill", "preempted", "finished")},
                ),
            ),
            Property(
                "refuses everything else",
                refuses,
                "Nobody writes before the prompt is read; who holds no blocks cannot lose any; what is over stays "
                "over; staying where one is is no transition.",
                tuple({"come_from": state} for state in STATES),
            ),
            Property(
                "is unharmed by a refusal",
                refusing_changes_nothing,
                "Ask first, then change: after a refusal the life goes on from where it was.",
            ),
            Property(
                "says which states may follow",
                says_so,
                "LEGAL[state] is the set of the states that may come next, and Life looks it up there.",
                tuple({"state": state} for state in STATES),
            ),
            Property("survives random lives", survives_random_lives, "The life that failed is shown step by step."),
        ),
    ),
)
