"""2.12 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_2_15 = exercise("2.15", "A bug that hides", kind="choice", points=1, minutes=2)
ANSWER_2_15.objective = "know what rescaling is for"
ANSWER_2_15.question = Choice(
    "abcd",
    "e9bbdff41cd3038f",
    {
        "a": "if the maximum never rises after the first tile, the factor left out is 1",
        "c": "a positive maximum can rise just as well",
        "d": "what counts is the tiles of the loop, not the blocks of the cache",
    },
    hint="The factor is 2^(old maximum - new maximum). When is it 1 in every step?",
)

ANSWER_2_16 = exercise("2.16", "From the symptom to the bug", kind="matching", points=2, minutes=3)
ANSWER_2_16.objective = "tell a prefill kernel's mistakes by their symptoms"
ANSWER_2_16.question = Matching(
    "abcd",
    {
        "`<` stands where `<=` should in `visible`": "c8a7e995408b7be3",
        "`table_ptr` is `block_tables_ptr` for every program": "62d06b185f6e866a",
        "V is loaded without `mask_kv`": "fe595a47b313ca73",
        "`row_positions` is `tokens`": "0717635b1883b579",
    },
    hint="For each mistake ask which inputs make it harmless: those are where it hides.",
)
