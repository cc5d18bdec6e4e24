"""2.12 Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="2.16",
        was="2.21",
        title="A bug that hides",
        kind="choice",
        names=("answer_2_16",),
        points=1,
        minutes=2,
        objective="know what rescaling is for",
        question=Choice(
            "abcd",
            "cd5360c613fd3752",
            {
                "a": "if the maximum never rises after the first tile, the factor left out is 1",
                "c": "a positive maximum can rise just as well",
                "d": "what counts is the tiles of the loop, not the blocks of the cache",
            },
            hint="The factor is 2^(old maximum - new maximum). When is it 1 in every step?",
        ),
    ),
    Exercise(
        id="2.17",
        was="2.22",
        title="From the symptom to the bug",
        kind="matching",
        names=("answer_2_17",),
        points=2,
        minutes=3,
        objective="tell a prefill kernel's mistakes by their symptoms",
        question=Matching(
            "abcd",
            {
                "the last key of each row is not read": "b64ae6dfced2d136",
                "every sequence reads the first row of block_tables": "84bdf44f2f280a38",
                "V is loaded without a mask": "75478dfecaa40817",
                "the mask compares keys with the row's number in its chunk": "ba4ddaeee9bd9529",
            },
            hint="For each mistake ask which inputs make it harmless: those are where it hides.",
        ),
    ),
    Exercise(
        id="2.18",
        title="Which idea does what",
        kind="matching",
        names=("answer_2_18",),
        points=2,
        minutes=2,
        objective="tell FlashAttention, PagedAttention and FlashDecoding apart",
        question=Matching(
            "abcd",
            {
                "the score matrix is never in slow memory": "8a7cd7eaef89cb64",
                "K and V of a sequence may lie anywhere in the pool": "47556c9564a66e77",
                "one query's keys are shared by many programs": "ca01396a722a9169",
                "a longer answer never moves K and V that are there": "d5c424c3481dc95c",
                "results become a little less exact": "11f0e6d9478be123",
            },
            hint="One of the three is about the order of the arithmetic, one about where things lie, one about who "
            "works on what.",
        ),
    ),
)
