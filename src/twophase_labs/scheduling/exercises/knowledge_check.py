"""4.11 and 4.12 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_4_11 = exercise("4.11", "Symptoms of a schedule", kind="matching", points=2, minutes=3)
ANSWER_4_11.objective = "tell scheduling troubles by their symptoms"
ANSWER_4_11.question = Matching(
    "abcdefg",
    {
        "tokens of running answers stop whenever a long prompt comes": "d",
        "many more tokens computed than requested": "a",
        "one class gets no first tokens as long as another is busy": "e",
        "short prompts get their first tokens in a bunch, after a long one's": "b",
        "throughput as before, and hardly any SLO met": "c",
        "every step of a small model on a fast GPU is 1 ms longer than its kernels": "g",
    },
    hint="Which ones are about decodes, which about the queue, and which about memory?",
)

ANSWER_4_12 = exercise("4.12", "Beyond the peak", kind="choice", points=1, minutes=1)
ANSWER_4_12.objective = "choose under overload by goodput"
ANSWER_4_12.question = Choice(
    "abcd",
    "b",
    {
        "a": "the earliest deadlines are those already missed: the work goes to requests that are late anyway",
        "c": "throughput rises a little, and tokens of every answer get slower",
        "d": "more run at once, and each of them more slowly; the queue only moves",
    },
    hint="Not all requests can meet their SLO. Which order lets the most of them meet it?",
)
