"""4.5 Swim lanes: how long an answer stands still."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number
from twophase_labs.scheduling.real_engine import CHUNK, NUM_PROMPTS, PROMPT_TOKENS, pace


def pause_in_steps() -> float:
    """All prompts, over a chunk and a decode, at this machine's pace."""
    here = pace()
    return NUM_PROMPTS * PROMPT_TOKENS * here.prompt_token_s / (CHUNK * here.prompt_token_s + here.decode_s)


EXERCISES = (
    Exercise(
        id="4.5",
        title="How long the answer stands still",
        kind="prediction",
        names=("guess_4_5",),
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
            hint="Under one policy all five prompts lie between two tokens of the answer; under the other, a chunk and "
            "what a step with a decode costs in any case.",
        ),
    ),
)
