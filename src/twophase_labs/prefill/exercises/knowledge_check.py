"""2.11 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_2_16 = exercise("2.16", "A bug that hides", kind="choice", points=1, minutes=2)
ANSWER_2_16.objective = "know what rescaling is for"
ANSWER_2_16.question = Choice(
    "abcd",
    "cd5360c613fd3752",
    {
        "a": "if the maximum never rises after the first tile, the factor left out is 1",
        "c": "a positive maximum can rise just as well",
        "d": "what counts is the tiles of the loop, not the blocks of the cache",
    },
    hint="The factor is 2^(old maximum - new maximum). When is it 1 in every step?",
)

ANSWER_2_17 = exercise("2.17", "From the symptom to the bug", kind="matching", points=2, minutes=3)
ANSWER_2_17.objective = "tell a prefill kernel's mistakes by their symptoms"
ANSWER_2_17.question = Matching(
    "abcd",
    {
        "`<` stands where `<=` should in `visible`": "ebb9e9b0293a2fac",
        "`table_ptr` is `block_tables_ptr` for every program": "87983691bbcf5c5f",
        "V is loaded without `mask_kv`": "e5d1320b125d3768",
        "`row_positions` is `tokens`": "45329fa784b9577d",
    },
    hint="For each mistake ask which inputs make it harmless: those are where it hides.",
)

ANSWER_2_18 = exercise("2.18", "Which idea does what", kind="matching", points=2, minutes=2)
ANSWER_2_18.objective = "tell FlashAttention, PagedAttention and FlashDecoding apart"
ANSWER_2_18.question = Matching(
    "abcd",
    {
        "the score matrix is never in slow memory": "8a7cd7eaef89cb64",
        "K and V of a sequence may lie anywhere in the pool": "47556c9564a66e77",
        "one query's keys are shared by many programs": "ca01396a722a9169",
        "as an answer grows, stored K and V are never moved": "93ae4995db4060e3",
        "the result is an approximation": "a078773047493b8e",
    },
    hint="One of the three is about the order of the arithmetic, one about where things lie, one about who "
    "works on what.",
)
