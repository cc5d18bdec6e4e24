"""3.7 and 3.8 Neighbouring threads, neighbouring addresses."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Number

GUESS_3_7 = exercise(
    "3.7", "What strides cost", kind="prediction", points=1, minutes=3, is_extra=True, needs=("triton",)
)
GUESS_3_7.objective = "think of a load as the sectors that its warp touches"
GUESS_3_7.hints = (
    "A sector holds 16 elements of 2 bytes. Of 16 elements that lie 16 apart, how many are in one sector? And how "
    "many of the other tokens' elements that the same warp reads are in it, too?",
)
GUESS_3_7.question = Number(lambda: 4, factor=1.5, unit="times", hint="Between once and 16 times.")

ANSWER_3_8 = exercise("3.8", "What a layout costs", kind="choice", points=1, minutes=3, is_extra=True)
ANSWER_3_8.objective = "see which accesses a layout of K makes expensive"
ANSWER_3_8.question = Choice(
    "abcd",
    "b",
    {
        "a": "a block of a head is one piece of 2,048 bytes in both, and all of it is read",
        "c": "one of the two takes everything that lies together, in whatever order it lies",
        "d": "the same bytes are asked for; count the sectors that they lie in",
    },
    hint="Where do the 64 numbers of one token lie, in each of the layouts? And all elements of a block?",
)
