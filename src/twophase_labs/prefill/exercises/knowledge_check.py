"""2.10 and 2.11 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_2_10 = exercise("2.10", "A bug that hides", kind="choice", points=1, minutes=2)
ANSWER_2_10.objective = "know what rescaling is for"
ANSWER_2_10.question = Choice(
    "abcd",
    "b",
    {
        "a": "if the maximum never rises after the first tile, the factor left out is 1",
        "c": "a positive maximum can rise just as well",
        "d": "what counts is the tiles of the loop, not the blocks of the cache",
    },
    hint="The factor is 2^(old maximum - new maximum). When is it 1 in every step?",
)

ANSWER_2_11 = exercise("2.11", "From the symptom to the bug", kind="matching", points=2, minutes=3)
ANSWER_2_11.objective = "tell a prefill kernel's mistakes by their symptoms"
ANSWER_2_11.question = Matching(
    "abcd",
    {
        "`<` stands where `<=` should in `visible`": "a",
        "`table_ptr` is `block_tables_ptr` for every program": "c",
        "V is loaded without `mask_kv`": "b",
        "`row_positions` is `tokens`": "d",
    },
    hint="For each mistake ask which inputs make it harmless: those are where it hides.",
)
