"""9.2: what vLLM's scheduler decides next."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

NEXT_9_2 = exercise("9.2", "The next step of vLLM", kind="matching", points=3, minutes=5)
NEXT_9_2.objective = "predict another engine's step from the rules you built"
NEXT_9_2.question = Matching(
    "abcdef",
    {"A": "b", "B": "c", "C": "d", "D": "a"},
    hint="Decodes first, then running prompts, then the queue. How much of B's prompt is left, what of C's is in the "
    "cache, and how many may run?",
)
