"""Why a known text is computed in one pass, and an unknown one is not."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

SEALED = {
    "train": "a",
    "score": "a",
    "write": "c",
    "write 8": "c",
    "verify 5": "a",
}

ANSWER_1_2 = exercise("1.2", "How many passes, one after another?", kind="matching", points=2, minutes=4)
ANSWER_1_2.objective = "tell what can be computed in parallel from what cannot"
ANSWER_1_2.hints = (
    "Ask of each job: when the first pass starts, which of the tokens it will feed are known?",
    "A token that is known can go into the same pass as its predecessors. One that is yet to be chosen cannot.",
    "Sequences do not wait for each other: they share a pass as the rows of a batch.",
)
ANSWER_1_2.question = Matching(
    "abcd",
    SEALED,
    hint="Only a token that depends on the outcome of an earlier pass has to wait for it. Which inputs do?",
)
