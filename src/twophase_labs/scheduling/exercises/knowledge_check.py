"""4.13 to 4.15 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_4_13 = exercise("4.13", "Which number would have told?", kind="matching", points=2, minutes=3)
ANSWER_4_13.objective = "choose the metric that shows a complaint"
ANSWER_4_13.question = Matching(
    "abcde",
    {
        "nothing appears for a long time, then it goes fast": "b4ac70d33125f86a",
        "the text stops in mid-sentence, now and then, and goes on": "1e2075c21e0d113c",
        "the text comes evenly, but slower than one reads": "b6e53b01226c47cc",
        "the machine is busy, and hardly anybody gets what was promised": "4f5936b6b5084726",
        "a night's batch of a million summaries takes until noon": "f4c9b4388c2305a3",
    },
    hint="Is the complaint about the start, about the text as it appears, or about the machine?",
)

ANSWER_4_14 = exercise("4.14", "Symptoms of a schedule", kind="matching", points=2, minutes=3)
ANSWER_4_14.objective = "tell scheduling troubles by their symptoms"
ANSWER_4_14.question = Matching(
    "abcde",
    {
        "tokens of running answers stop whenever a long prompt comes": "b72762c952378f16",
        "many more tokens computed than requested": "826f21a349d5b475",
        "one class gets no first tokens as long as another is busy": "ddc3c4e42f48135a",
        "short prompts get their first tokens in a bunch, after a long one's": "8653475678411246",
        "throughput as ever, and hardly any promise kept": "e4f1fe455de2e239",
    },
    hint="Which ones are about decodes, which about the queue, and which about memory?",
)

ANSWER_4_15 = exercise("4.15", "Beyond the peak", kind="choice", points=1, minutes=1)
ANSWER_4_15.objective = "choose under overload by goodput"
ANSWER_4_15.question = Choice(
    "abcd",
    "eb2cb8c6e621763f",
    {
        "a": "the earliest deadlines are those already missed: the work goes to requests that are late anyway",
        "c": "throughput rises a little, and tokens of every answer get slower",
        "d": "more run at once, and each of them more slowly; the queue only moves",
    },
    hint="Not all requests can meet their SLO. Which order lets the most of them meet it?",
)
