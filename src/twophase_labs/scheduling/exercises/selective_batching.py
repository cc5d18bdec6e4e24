"""Selective batching: what a step computes in one piece."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Matching

EXERCISES = (
    Exercise(
        id="4.20",
        title="What may be batched, and how",
        kind="matching",
        names=("answer_4_20",),
        points=2,
        minutes=4,
        objective="know which operations have to know whose token it is",
        question=Matching(
            "abcd",
            {
                "the projections to q, k and v": "367ef85f2975d46d",
                "the MLP": "eada3e15463082fb",
                "RMSNorm": "1aa49046f089610d",
                "rotary embedding": "2898117600ed8301",
                "scores, softmax and weighted sum": "61d4754b6cc77ada",
                "writing K and V into pages": "0487a85436656915",
                "the projection to the vocabulary": "1ffa0a0fa63b91ef",
                "choosing the next token": "c6ef53c028ab0942",
            },
            hint="Does the operation have weights that all tokens share? Does a token meet another one? Is the result "
            "needed for every token, or for the last one of a sequence?",
        ),
    ),
)
