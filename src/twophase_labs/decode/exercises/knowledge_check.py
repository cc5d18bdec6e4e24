"""3.13 Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number


def tokens_per_second() -> float:
    weights_gb, kv_gb, num_sequences, gb_per_s = 16, 0.1, 40, 2_000
    return num_sequences / ((weights_gb + num_sequences * kv_gb) / gb_per_s)


def blocks_after_fork() -> int:
    """A prompt of 100 tokens in blocks of 16, forked to 4 in all, each of which then writes 13 tokens."""
    num_full = 100 // 16
    own = -(-(100 + 13) // 16) - num_full
    return num_full + 4 * own


EXERCISES = (
    Exercise(
        id="3.24",
        title="Why a decode step waits",
        kind="choice",
        names=("answer_3_24",),
        points=1,
        minutes=1,
        objective="say why decode is memory-bound",
        question=Choice(
            "abcd",
            "f1f431e3f1732847",
            {
                "a": "softmax and exponentials are a small part of the step, on any machine",
                "b": "the cache is what saves that; a step computes one position",
                "d": "that holds on a GPU for launches, and a large batch or a graph hides it; the bytes remain",
            },
            hint="How many operations is each byte of weights used for in a step of one sequence?",
        ),
    ),
    Exercise(
        id="3.25",
        title="A bound on tokens per second",
        kind="numeric",
        names=("answer_3_25",),
        points=1,
        minutes=2,
        objective="bound the throughput of decoding by bytes",
        question=Number(
            tokens_per_second, rel=0.01, unit="tokens/s", hint="Bytes of one step first; a step gives 40 tokens."
        ),
    ),
    Exercise(
        id="3.26",
        title="Blocks after a fork",
        kind="numeric",
        names=("answer_3_26",),
        points=1,
        minutes=3,
        objective="count shared and copied blocks",
        question=Number(
            blocks_after_fork,
            rel=0,
            unit="blocks",
            hint="Full blocks stay shared. The last block of the prompt is partial: who ends up with a copy of it, and "
            "who fills it?",
        ),
    ),
    Exercise(
        id="3.27",
        title="Symptoms of a kernel",
        kind="matching",
        names=("answer_3_27",),
        points=2,
        minutes=3,
        objective="tell kernel bugs by their symptoms",
        question=Matching(
            "abcde",
            {
                "right for lengths 16, 32, 48, wrong in between": "908ea9aefb538f7b",
                "right alone, wrong for all but the first of a batch": "9e1e125b128e9a38",
                "NaN for the shortest sequence only, once there are splits": "5001bb154be5be43",
                "right for one KV head, wrong for several": "e3111af4a8bb9782",
                "every split right by itself, the merged result off": "02b5296676059c3e",
            },
            hint="Ask of each: which loop, index or mask is exercised in the wrong case and not in the right one?",
        ),
    ),
    Exercise(
        id="3.28",
        title="When to split",
        kind="choice",
        names=("answer_3_28",),
        points=1,
        minutes=1,
        objective="know what split-KV is for",
        question=Choice(
            "abcd",
            "63cc69521b4dcdec",
            {
                "a": "with 64 sequences of 8 KV heads there are 512 programs already",
                "c": "a split then has next to no keys, and the merge costs a launch",
                "d": "splitting reads the same bytes, and a few more",
            },
            hint="Count the programs without splits, and compare with the 132 processors of a large GPU.",
        ),
    ),
    Exercise(
        id="3.29",
        title="What int8 K and V bring",
        kind="choice",
        names=("answer_3_29",),
        points=1,
        minutes=2,
        objective="know where smaller K and V help",
        question=Choice(
            "abcd",
            "066d5844f5c08c68",
            {
                "a": "the weights stay as they are, and at short contexts they are nearly all of it",
                "b": "the error is there; it was too small for our needles",
                "c": "prefill reads K and V, but it waits for arithmetic",
            },
            hint="T(t) = a + b t: which of the two changed? And what else is made of bytes per token?",
        ),
    ),
)
