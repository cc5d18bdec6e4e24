"""4.9 A loop that plans a step while the device computes the one before."""

from collections.abc import Mapping, Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, amount, compare, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.ahead import STOP, Device, DeviceError, Stream

AHEAD = exercise("4.9", "One step ahead", "serve_ahead", points=4, minutes=12, lines=18, difficulty=3, time_limit_s=10)
AHEAD.objective = "plan a step whose input tokens are still placeholders"
AHEAD.hints = (
    "Keep a queue of the launched steps, each a list of names. In each round launch what may be launched, and wait "
    "once two steps are in flight, or when nothing could be launched.",
    "The tokens that a stream has and those in flight together must not exceed max_tokens. After a wait, look at each "
    "stream that still holds blocks: append its token unless it has ended; free it if it has ended and no launched "
    "step has it.",
    "in_flight, left = deque(), list(streams)\n"
    "while left:\n"
    "    names = []\n"
    "    for stream in left:\n"
    "        num_coming = ...                      # its tokens in flight\n"
    "        if ...:                               # not ended, not full, and not guided with a token in flight\n"
    "            names.append(stream.name)\n"
    "    if names:\n"
    "        ...                                   # launch, and note it\n"
    "    if not names or len(in_flight) == 2:\n"
    "        tokens = device.wait()\n"
    "        in_flight.popleft()\n"
    "        for stream in list(left):\n"
    "            ...                               # take its token; free it if it is over",
)


def script(draw: Draw, length: int, stops: bool) -> list[int]:
    """So many tokens, the last of them the stop token or not."""
    tokens = [draw.integer(1, 100) for _ in range(length)]
    return [*tokens[:-1], STOP] if stops else tokens


def served(answer: Any, scripts: Mapping[str, list[int]], guided: Sequence[str] = ()) -> Device:
    """The device after all streams were served, their tokens compared with the scripts."""
    device = Device(scripts, guided)
    streams = [
        Stream(name, len(tokens) + 9 if tokens[-1] == STOP else len(tokens), name in guided)
        for name, tokens in scripts.items()
    ]
    told = ", ".join(f"{name}: {tokens}" + (" (guided)" if name in guided else "") for name, tokens in scripts.items())
    try:
        answer.serve_ahead(device, streams)
    except DeviceError as error:
        reject(str(error), f"the device gives {told}")
    for stream in streams:
        if stream.tokens != scripts[stream.name]:
            reject(f"{stream.name} has the tokens {stream.tokens}, expected {scripts[stream.name]}",
                   f"the device gives {told}")  # fmt: skip
    return device


def steps_with(device: Device, name: str) -> list[int]:
    return [number for number, step in enumerate(device.steps) if name in step.names]


@AHEAD.check("serves a stream to its length", length=(1, 2, 7))
def serves_to_its_length(answer: Any, draw: Draw, length: int) -> None:
    """Its tokens are known once their step was waited for; the last ones are waited for, too."""
    device = served(answer, {"A": script(draw, length, stops=False)})
    if device.num_computed > length:
        reject(f"{amount(device.num_computed, 'token')} were computed for max_tokens={length}",
               "Tokens in flight count.")  # fmt: skip


@AHEAD.check("ends at the stop token", length=(1, 2, 6))
def ends_at_the_stop_token(answer: Any, draw: Draw, length: int) -> None:
    """The step behind a stop token may be in flight when the token is read; what it gives is dropped, and no further
    one is launched."""
    device = served(answer, {"A": script(draw, length, stops=True), "B": script(draw, length + 8, stops=False)})
    if device.num_dropped > 1:
        reject(f"{device.num_dropped} tokens were computed behind the stop token of A, which ends after {length}")


@AHEAD.check("keeps the device busy")
def keeps_the_device_busy(answer: Any, draw: Draw) -> None:
    """The next step has to be launched before the running one is waited for: two in flight."""
    device = served(answer, {name: script(draw, draw.integer(4, 12), stops=False) for name in "ABC"})
    if device.num_bubbles:
        reject(f"the device waited {amount(device.num_bubbles, 'time')} for a plan, {device.idle_ms:g} ms in all")


@AHEAD.check("launches a guided stream when its tokens are known", num_others=(0, 2))
def waits_for_guided_tokens(answer: Any, draw: Draw, num_others: int) -> None:
    """Its mask is made from its newest token. Nobody else has to wait for it."""
    others = {str(i): script(draw, 12, stops=False) for i in range(num_others)}
    served(answer, others | {"A": script(draw, 5, stops=draw.integer(0, 2) == 0)}, guided="A")


@AHEAD.check("gives blocks back in time, and once", stops=(False, True))
def gives_blocks_back(answer: Any, draw: Draw, stops: bool) -> None:
    """When a stream has ended, a step that computes it may be in flight; its blocks are free when that is over."""
    device = served(answer, {"A": script(draw, 5, stops), "B": script(draw, 14, stops=False)})
    compare(sorted(device.freed), ["A", "B"], what="the streams whose blocks were given back")
    last = steps_with(device, "A")[-1]
    if device.freed["A"] > last + 2:
        reject(
            f"A was computed last in step {last}, and its blocks were given back after "
            f"{amount(device.freed['A'], 'step')} had been launched"
        )


@AHEAD.check("leaves no stream out of a step", num=(2, 5, 40))
def leaves_nothing_out(answer: Any, draw: Draw, num: int) -> None:
    """A stream is in every step from the first to its last; a guided one in every second step, while others run."""
    scripts = {str(i): script(draw, draw.integer(1, 12), stops=draw.integer(0, 2) == 0) for i in range(num)}
    device = served(answer, scripts | {"G": script(draw, 4, stops=False), "Z": script(draw, 16, stops=False)}, "G")
    for name in scripts:
        steps = steps_with(device, name)
        if steps != list(range(len(steps))):
            reject(f"{name} is in the steps {steps}; it may compute a token in each of the first ones")
    compare(steps_with(device, "G"), [0, 2, 4, 6], what="the steps of the guided stream")
