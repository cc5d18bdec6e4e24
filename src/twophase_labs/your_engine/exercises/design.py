"""9.3: an engine's options from a service's requirements, judged by the planner and the simulator."""

from typing import Any

from twophase.core.errors import ConfigError
from twophase_labs.machine.checks import Draw, reject, shown
from twophase_labs.machine.exercise import exercise
from twophase_labs.your_engine.services import DEFAULTS, MAX_CHANGED, SERVICES, Outcome, changed, outcome

DESIGN = exercise("9.3", "Three services, a GPU each", "design", points=6, minutes=18, lines=9, difficulty=3)
DESIGN.time_limit_s = 240
DESIGN.objective = "choose an engine's options from what a service needs"
DESIGN.hints = (
    "Begin with what each service has too much of: tokens that others have computed, sequences that wait for a place, "
    "long prompts beside decodes. `print(outcome('chat', {...}))` tries a design.",
    "A step of 8,192 tokens takes a few tenths of a second, and every running sequence waits for it. And with "
    "1,000 sequences at once a step reads more K and V than weights: what makes them smaller?",
    "Chat and retrieval share prefixes and need short steps; the batch needs many sequences, and small K and V:\n\n"
    "def design(service):\n"
    '    if service == "batch":\n'
    '        return {"max_num_seqs": ..., "kv_cache_dtype": ...}\n'
    '    return {"enable_prefix_caching": ..., "max_num_batched_tokens": ...}',
)


@DESIGN.check("returns options that there are")
def returns_options(answer: Any, draw: Draw) -> None:
    """A dict with some of the keys of DEFAULTS, for each of the three names."""
    for name in SERVICES:
        _options(answer, name)


@DESIGN.check("changes two options at most", service=tuple(SERVICES))
def changes_two(answer: Any, draw: Draw, service: str) -> None:
    """Take one back at a time, and see what the outcome loses: an option that does little is not worth its price."""
    options = _options(answer, service)
    names = changed(options)
    if len(names) > MAX_CHANGED:
        reject(
            f"the design for {service} changes {len(names)} options, {', '.join(names)}; at most {MAX_CHANGED} may "
            "differ from DEFAULTS",
            shown(options),
        )


@DESIGN.check("fits into the GPU and through the gate", service=tuple(SERVICES))
def fits(answer: Any, draw: Draw, service: str) -> None:
    """Weights, workspace and one request's K/V have to fit; and a service's gate may refuse weights of few bits."""
    _outcome(answer, service)


@DESIGN.check("meets chat's SLO")
def meets_chat(answer: Any, draw: Draw) -> None:
    """600 of 850 prompt tokens are the same in every request. What is left is a matter of how long a step may take."""
    _require(answer, "chat")


@DESIGN.check("has the batch done in time")
def meets_batch(answer: Any, draw: Draw) -> None:
    """Nobody waits for a token here, so many sequences may run at once. What does a step then read most of?"""
    _require(answer, "batch")


@DESIGN.check("meets retrieval's SLO")
def meets_retrieval(answer: Any, draw: Draw) -> None:
    """The handbooks come again; one that is new is 12,000 tokens, and must not hold up all others for half a second."""
    _require(answer, "retrieval")


def _options(answer: Any, service: str) -> dict[str, Any]:
    options = answer.design(service)
    if not isinstance(options, dict):
        reject(f"design({service!r}) returned {shown(options)}, expected a dict of options")
    if odd := [key for key in options if key not in DEFAULTS]:
        reject(f"design({service!r}) sets {shown(odd[0])}; the options to choose are {', '.join(DEFAULTS)}")
    return dict(options)


def _outcome(answer: Any, service: str) -> Outcome:
    options = _options(answer, service)
    try:
        return outcome(service, options)
    except ConfigError as error:
        reject(f"the design for {service} is refused: {error}", shown(options))


def _require(answer: Any, service: str) -> None:
    found = _outcome(answer, service)
    if not found.is_met:
        reject(
            f"the design for {service} misses its target",
            f"target: {found.service.target}",
            f"simulated: {found}",
        )
