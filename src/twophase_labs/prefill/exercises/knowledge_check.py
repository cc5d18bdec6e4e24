"""2.10 and 2.11 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_2_10 = exercise("2.10", "A bug that hides", kind="choice", points=1, minutes=2)
ANSWER_2_10.objective = "know what rescaling is for"
ANSWER_2_10.question = Choice(
    "abcd",
    "7a26e2430e452548",
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
        "`<` stands where `<=` should in `visible`": "9b24131b3db51984",
        "`table_ptr` is `block_tables_ptr` for every program": "a88e546cd616af66",
        "V is loaded without `mask_kv`": "52c5420a56adc16d",
        "`row_positions` is `tokens`": "47c303fca750d1d2",
    },
    hint="For each mistake ask which inputs make it harmless: those are where it hides.",
)
