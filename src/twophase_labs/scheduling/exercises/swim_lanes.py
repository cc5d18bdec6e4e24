"""4.6 and 4.7 Swim lanes: what an order does to a first token, and to the tokens after it."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Number
from twophase_labs.scheduling.real_engine import CHUNK, NUM_PROMPTS, PROMPT_TOKENS, pace


def pause_in_steps() -> float:
    """All prompts, over a chunk and a decode, at this machine's pace."""
    here = pace()
    return NUM_PROMPTS * PROMPT_TOKENS * here.prompt_token_s / (CHUNK * here.prompt_token_s + here.decode_s)


EXERCISES = (
    Exercise(
        id="4.6",
        was="4.9",
        title="How long the answer stands still",
        kind="prediction",
        names=("guess_4_6",),
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
    Exercise(
        id="4.7",
        was="4.19",
        title="Behind a long prompt",
        kind="choice",
        names=("answer_4_7",),
        points=1,
        minutes=2,
        objective="tell what chunks solve from what order solves",
        question=Choice(
            "abcd",
            "19d7ec43a6bd8112",
            {
                "a": "every chunk still belongs to the long prompt, and more of them cost more steps",
                "b": "the long prompt is done sooner, but until then it still has every step to itself",
                "c": "sequence places and blocks are there; what is short is the budget of each step",
            },
            hint="Which request gets the prefill tokens of each step, as long as the long prompt is not done?",
        ),
    ),
)
