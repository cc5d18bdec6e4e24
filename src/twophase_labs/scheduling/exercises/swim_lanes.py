"""4.5 Swim lanes: how long an answer stands still."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number
from twophase_labs.scheduling.real_engine import CHUNK, NUM_PROMPTS, PROMPT_TOKENS, pace


def pause_in_steps() -> float:
    """All prompts, over a chunk and a decode, at this machine's pace."""
    here = pace()
    return NUM_PROMPTS * PROMPT_TOKENS * here.prompt_token_s / (CHUNK * here.prompt_token_s + here.decode_s)


GUESS_4_5 = exercise(
    "4.5", "How long the answer stands still", kind="prediction", points=1, minutes=3, needs=("model",), time_limit_s=60
)
GUESS_4_5.objective = "predict a stall from token counts"
GUESS_4_5.hints = ("A pause is as long as what is computed in it. Count prompt tokens, and do not forget the decode.",)
GUESS_4_5.question = Number(
    pause_in_steps,
    factor=2,
    unit="times",
    hint="Under one policy all five prompts lie between two tokens of the answer; under the other, a chunk and "
    "what a step with a decode costs in any case.",
)
