"""4.5 Swim lanes: what three policies do to a first token, and to the tokens after it."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number
from twophase_labs.scheduling.real_engine import CHUNK, NUM_READERS, READER_PROMPT, pace


def pause_in_steps() -> float:
    """All prompts, over a chunk and a decode, at this machine's pace."""
    here = pace()
    return NUM_READERS * READER_PROMPT * here.prompt_token_s / (CHUNK * here.prompt_token_s + here.decode_s)


EXERCISES = (
    Exercise(
        id="4.8",
        title="The first token of B",
        kind="numeric",
        names=("answer_4_8",),
        points=1,
        minutes=3,
        objective="read a time to first token off a timeline",
        hints=("Draw the time axis: A's prefill is one step, and nothing begins before it is over.",),
        question=Number(
            lambda: (300 + 20) - 50,
            rel=0,
            unit="ms",
            hint="When does B's first token appear on the clock? And since when has B been waiting for it?",
        ),
    ),
    Exercise(
        id="4.9",
        title="How long the writer stands still",
        kind="prediction",
        names=("guess_4_9",),
        points=1,
        minutes=3,
        objective="predict a stall from token counts",
        needs=("model",),
        time_limit_s=60,
        hints=("A pause is as long as what is computed in it. Count prompt tokens, and do not forget the decode.",),
        question=Number(
            pause_in_steps,
            factor=2,
            unit="times",
            hint="Under one policy all five prompts lie between two tokens of the writer; under the other, a chunk and "
            "what a step with a decode costs in any case.",
        ),
    ),
)
