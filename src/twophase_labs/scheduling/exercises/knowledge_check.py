"""4.10 to 4.12 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_4_10 = exercise("4.10", "Which number would have told?", kind="matching", points=2, minutes=3)
ANSWER_4_10.objective = "choose the metric that shows a complaint"
ANSWER_4_10.question = Matching(
    "abcde",
    {
        "nothing appears for a long time, then it goes fast": "61dc41402f784654",
        "the text stops in mid-sentence, now and then, and goes on": "f977276ade8edcd5",
        "the text comes evenly, but slower than one reads": "ff35b2802c96227d",
        "the machine is busy, and hardly anybody gets what was promised": "871024a99074ffe8",
        "a night's batch of a million summaries takes until noon": "bd2afce3a54c42c3",
    },
    hint="Is the complaint about the start, about the text as it appears, or about the machine?",
)

ANSWER_4_11 = exercise("4.11", "Symptoms of a schedule", kind="matching", points=2, minutes=3)
ANSWER_4_11.objective = "tell scheduling troubles by their symptoms"
ANSWER_4_11.question = Matching(
    "abcde",
    {
        "tokens of running answers stop whenever a long prompt comes": "7c851c34e63aad14",
        "many more tokens computed than requested": "31e51756b5a3feb5",
        "one class gets no first tokens as long as another is busy": "47f9c5adb4a23dae",
        "short prompts get their first tokens in a bunch, after a long one's": "c88613be8dffbb50",
        "throughput as ever, and hardly any promise kept": "cee2f99f5f79e988",
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
