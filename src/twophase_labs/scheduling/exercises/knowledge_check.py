"""4.11 and 4.12 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_4_11 = exercise("4.11", "Symptoms of a schedule", kind="matching", points=2, minutes=3)
ANSWER_4_11.objective = "tell scheduling troubles by their symptoms"
ANSWER_4_11.question = Matching(
    "abcdefg",
    {
        "tokens of running answers stop whenever a long prompt comes": "7c851c34e63aad14",
        "many more tokens computed than requested": "31e51756b5a3feb5",
        "one class gets no first tokens as long as another is busy": "47f9c5adb4a23dae",
        "short prompts get their first tokens in a bunch, after a long one's": "c88613be8dffbb50",
        "throughput as before, and hardly any SLO met": "92facf222ab8d23d",
        "every step of a small model on a fast GPU is 1 ms longer than its kernels": "1cdc6190ea8a2f77",
    },
    hint="Which ones are about decodes, which about the queue, and which about memory?",
)

ANSWER_4_12 = exercise("4.12", "Beyond the peak", kind="choice", points=1, minutes=1)
ANSWER_4_12.objective = "choose under overload by goodput"
ANSWER_4_12.question = Choice(
    "abcd",
    "cce1df5962bff297",
    {
        "a": "the earliest deadlines are those already missed: the work goes to requests that are late anyway",
        "c": "throughput rises a little, and tokens of every answer get slower",
        "d": "more run at once, and each of them more slowly; the queue only moves",
    },
    hint="Not all requests can meet their SLO. Which order lets the most of them meet it?",
)
