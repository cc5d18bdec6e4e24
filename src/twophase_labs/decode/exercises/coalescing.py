"""3.9 and 3.10 Neighbouring threads, neighbouring addresses."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Number

EXERCISES = (
    Exercise(
        id="3.9",
        is_extra=True,
        title="What strides cost",
        kind="prediction",
        names=("guess_3_9",),
        points=1,
        minutes=3,
        objective="think of a load as the sectors that its warp touches",
        hints=(
            "A sector holds 16 elements of 2 bytes. Of 16 elements that lie 16 apart, how many are in one sector? And "
            "how many of the other tokens' elements that the same warp reads are in it, too?",
        ),
        question=Number(lambda: 4, factor=1.5, unit="times", hint="Between once and 16 times."),
        needs=("triton",),
    ),
    Exercise(
        id="3.10",
        is_extra=True,
        title="What a layout costs",
        kind="choice",
        names=("answer_3_10",),
        points=1,
        minutes=3,
        objective="see which accesses a layout of K makes expensive",
        question=Choice(
            "abcd",
            "0cd61edbbef4a3dc",
            {
                "a": "a block of a head is one piece of 2,048 bytes in both, and all of it is read",
                "c": "one of the two takes everything that lies together, in whatever order it lies",
                "d": "the same bytes are asked for; count the sectors that they lie in",
            },
            hint="Where do the 64 numbers of one token lie, in each of the layouts? And all elements of a block?",
        ),
    ),
)
