"""4.12 Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number


def blocks_to_admit() -> int:
    """A prompt of 100 tokens, blocks of 16; 12 running, 9 of them may grow, and so may the newcomer; pool 200, 5 %."""
    return -(-100 // 16) + 9 + 1 + 200 * 5 // 100


def later_s() -> float:
    levels, patience_s = 3, 15
    return levels * patience_s


EXERCISES = (
    Exercise(
        id="4.24",
        title="Blocks at the door",
        kind="numeric",
        names=("answer_4_24",),
        points=1,
        minutes=2,
        objective="apply headroom and watermark",
        question=Number(
            blocks_to_admit, rel=0, unit="blocks", hint="Three parts: what it has, what may grow, what is kept besides."
        ),
    ),
    Exercise(
        id="4.25",
        title="The victim",
        kind="choice",
        names=("answer_4_25",),
        points=1,
        minutes=1,
        objective="say why one order serves and preempts",
        question=Choice(
            "abcd",
            "02131f1c8b9dd771",
            {
                "a": "then the one who asked may be the next one thrown out, by the one just thrown out",
                "b": "the oldest has most to lose, and somebody must get to the end",
                "d": "it comes back, is the victim again, and nothing bounds how often",
            },
            hint="Follow two sequences that throw each other out. What must be true for one of them to finish?",
        ),
    ),
    Exercise(
        id="4.26",
        title="Overtaken",
        kind="numeric",
        names=("answer_4_26",),
        points=1,
        minutes=1,
        objective="bound starvation under ageing",
        question=Number(later_s, rel=0, unit="s", hint="A level is worth the patience."),
    ),
    Exercise(
        id="4.27",
        title="Symptoms of a schedule",
        kind="matching",
        names=("answer_4_27",),
        points=2,
        minutes=3,
        objective="tell scheduling troubles by their symptoms",
        question=Matching(
            "abcde",
            {
                "tokens of running answers stop whenever a long prompt comes": "e85a8c015ad24959",
                "many more tokens computed than requested": "916c72daa8d44ab0",
                "first tokens of a class stop for as long as another one is busy": "bad8159d302d60a9",
                "short prompts get their first tokens in a bunch, after a long one's": "952be0fa4d28d72b",
                "throughput as ever, and hardly any promise kept": "f9bfd8cfa9c795aa",
            },
            hint="Which ones are about decodes, which about the queue, and which about memory?",
        ),
    ),
    Exercise(
        id="4.28",
        title="What the simulator knows",
        kind="choice",
        names=("answer_4_28",),
        points=1,
        minutes=1,
        objective="know what a simulation can be trusted with",
        question=Choice(
            "abcd",
            "30a1b934769660bb",
            {
                "a": "its times are as good as the cost model, and no better",
                "b": "nobody computes a token; it cannot know what a model would write",
                "d": "near saturation small errors of a step add up in the queue",
            },
            hint="Which part of the simulator is the same code as in the engine?",
        ),
    ),
    Exercise(
        id="4.29",
        title="Beyond the peak",
        kind="choice",
        names=("answer_4_29",),
        points=1,
        minutes=1,
        objective="choose under overload by goodput",
        question=Choice(
            "abcd",
            "714f1cc07723e17d",
            {
                "a": "everybody then waits equally long: too long",
                "c": "throughput rises a little, and tokens of every answer get slower",
                "d": "more run at once, and each of them more slowly; the queue only moves",
            },
            hint="Not all promises can be kept. Which order keeps the most of them?",
        ),
    ),
)
