"""4.15 to 4.17 Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="4.15",
        was="4.13",
        title="Which number would have told?",
        kind="matching",
        names=("answer_4_15",),
        points=2,
        minutes=4,
        objective="choose the metric that shows a complaint",
        question=Matching(
            "abcde",
            {
                "nothing appears for a long time, then it goes fast": "7f6257d5f5f6ceea",
                "the text stops in mid-sentence, now and then, and goes on": "b2de8c947a6a6e4f",
                "the text comes evenly, but slower than one reads": "5896991d22812e36",
                "the machine is busy, and hardly anybody gets what was promised": "5222292c725e1f47",
                "a night's batch of a million summaries takes until noon": "234a8593da72b1f0",
            },
            hint="Is the complaint about the start, about the text as it appears, or about the machine?",
        ),
    ),
    Exercise(
        id="4.16",
        was="4.27",
        title="Symptoms of a schedule",
        kind="matching",
        names=("answer_4_16",),
        points=2,
        minutes=3,
        objective="tell scheduling troubles by their symptoms",
        question=Matching(
            "abcde",
            {
                "tokens of running answers stop whenever a long prompt comes": "a16b92724aa225e3",
                "many more tokens computed than requested": "3a2466d25e3909ef",
                "first tokens of a class stop for as long as another one is busy": "dc16a8d63b120030",
                "short prompts get their first tokens in a bunch, after a long one's": "97f81853101e8f56",
                "throughput as ever, and hardly any promise kept": "68c2a4040b74df79",
            },
            hint="Which ones are about decodes, which about the queue, and which about memory?",
        ),
    ),
    Exercise(
        id="4.17",
        was="4.29",
        title="Beyond the peak",
        kind="choice",
        names=("answer_4_17",),
        points=1,
        minutes=1,
        objective="choose under overload by goodput",
        question=Choice(
            "abcd",
            "59f64003be4996b6",
            {
                "a": "every request then waits equally long: too long",
                "c": "throughput rises a little, and tokens of every answer get slower",
                "d": "more run at once, and each of them more slowly; the queue only moves",
            },
            hint="Not all requests can meet their SLO. Which order lets the most of them meet it?",
        ),
    ),
)
