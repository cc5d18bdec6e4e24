"""2.12 Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number


def programs_with_work() -> int:
    block_q = 128 // (32 // 8)
    return 8 * sum(-(-chunk // block_q) for chunk in (1000, 200, 5))


EXERCISES = (
    Exercise(
        id="2.21",
        title="A bug that hides",
        kind="choice",
        names=("answer_2_21",),
        points=1,
        minutes=2,
        objective="know what rescaling is for",
        question=Choice(
            "abcd",
            "38e39177b46240f1",
            {
                "a": "if the maximum never rises after the first tile, the factor left out is 1",
                "c": "a positive maximum can rise just as well",
                "d": "what counts is the tiles of the loop, not the pages",
            },
            hint="The factor is 2^(old maximum - new maximum). When is it 1 in every step?",
        ),
    ),
    Exercise(
        id="2.22",
        title="From the symptom to the bug",
        kind="matching",
        names=("answer_2_22",),
        points=2,
        minutes=3,
        objective="tell a prefill kernel's mistakes by their symptoms",
        question=Matching(
            "abcd",
            {
                "the last key of each row is not read": "feb0fddd7459cc18",
                "every sequence reads the first row of block_tables": "a34b73a595e13202",
                "V is loaded without a mask": "1626179542a9b1e6",
                "the mask compares keys with the row's number in its chunk": "f455314385d58259",
            },
            hint="For each mistake ask which inputs make it harmless: those are where it hides.",
        ),
    ),
    Exercise(
        id="2.23",
        title="A slot by hand",
        kind="numeric",
        names=("answer_2_23",),
        points=1,
        minutes=1,
        objective="translate a position to a slot",
        question=Number(
            lambda: [40, 7, 12][35 // 16] * 16 + 35 % 16,
            rel=0,
            hint="Entry of the table first, then the offset in the page.",
        ),
    ),
    Exercise(
        id="2.24",
        title="Programs with work",
        kind="numeric",
        names=("answer_2_24",),
        points=1,
        minutes=3,
        objective="map a ragged batch to programs",
        question=Number(
            programs_with_work,
            rel=0,
            unit="programs",
            hint="How many tokens fit into 128 rows if each takes as many as its group has heads? Round up per chunk.",
        ),
    ),
    Exercise(
        id="2.25",
        title="What chunks cost",
        kind="choice",
        names=("answer_2_25",),
        points=1,
        minutes=2,
        objective="know what chunked prefill changes",
        question=Choice(
            "abcd",
            "e574e92a330d63ba",
            {
                "a": "each query still meets each key before it exactly once",
                "b": "every token has one K and one V, whenever they were computed",
                "d": "each token goes through each linear layer once",
            },
            hint="Which of the four belongs to a pass, and which to a token?",
        ),
    ),
    Exercise(
        id="2.26",
        title="Utilisation",
        kind="numeric",
        names=("answer_2_26",),
        points=1,
        minutes=1,
        objective="compute a model FLOP utilisation",
        question=Number(
            lambda: 100 * 180 / 1.5 / 200,
            rel=0.005,
            unit="percent",
            hint="Operations per second reached, over operations per second possible.",
        ),
    ),
)
