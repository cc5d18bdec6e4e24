"""5.10 Final knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number
from twophase_tools.capacity.config import Eviction
from twophase_tools.capacity.memory import blocks_of


def tokens_per_pass() -> float:
    """1 + a + a^2 + ... + a^k for a = 0.5, k = 4 (Leviathan et al., equation 1)."""
    return sum(0.5**i for i in range(5))


def blocks_with_window() -> int:
    """Sinks 4, window 1,024, blocks of 16: however long the sequence gets."""
    return blocks_of(10**6, 16, Eviction(window=1024, num_sinks=4))


EXERCISES = (
    Exercise(
        id="5.28",
        title="Which technique?",
        kind="matching",
        names=("answer_5_28",),
        points=2,
        minutes=4,
        objective="choose a technique by workload",
        question=Matching(
            "abcdef",
            {
                "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "37a6f01f56161aad",
                "somebody, quite alone, waits for an edit that repeats most of a file": "3b42e6daa0625435",
                "answers are read by a program, and a missing bracket costs a retry": "5ccb5cec070701b4",
                "a log is followed for weeks, and only its last hour matters": "c7dd251394720f84",
                "the weights alone are larger than one GPU": "6b29198a521a341d",
                "the best chunks, and still long gaps, beside prompts of 20,000 tokens": "299c2ae8b501808a",
            },
            hint="What does each workload have too much of: the same tokens, easy tokens, wrong tokens, old tokens, "
            "bytes, or company?",
        ),
    ),
    Exercise(
        id="5.29",
        title="A bad drafter",
        kind="choice",
        names=("answer_5_29",),
        points=1,
        minutes=1,
        objective="know what a drafter can and cannot change",
        question=Choice(
            "abcd",
            "24a40beaf94d2c5b",
            {
                "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
                "b": "the temperature changes both distributions, and the rule holds for any two of them",
                "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
            },
            hint="What decides whether a draft stays, and what is put in its place?",
        ),
    ),
    Exercise(
        id="5.30",
        title="Tokens per pass",
        kind="numeric",
        names=("answer_5_30",),
        points=1,
        minutes=2,
        objective="expect a gain from an acceptance rate",
        question=Number(
            tokens_per_pass,
            rel=0.01,
            unit="tokens",
            hint="One token comes in any case. The second needs the first draft accepted, the third the first two, ...",
        ),
    ),
    Exercise(
        id="5.31",
        title="Eight GPUs",
        kind="choice",
        names=("answer_5_31",),
        points=1,
        minutes=2,
        objective="tell latency from throughput when adding GPUs",
        question=Choice(
            "abcd",
            "f154b5523dc6818b",
            {
                "a": "each token then waits for all-reduces of eight, and the model fits on one: they buy no memory",
                "c": "one token of one sequence passes through all stages: eight GPUs, and one works at a time",
                "d": "moving pages takes prefill out of the way of decodes; there is hardly any prefill to take",
            },
            hint="It fits on one GPU, and the promise is kept with one. What can the other seven add without talking?",
        ),
    ),
    Exercise(
        id="5.32",
        title="Symptoms",
        kind="matching",
        names=("answer_5_32",),
        points=2,
        minutes=4,
        objective="tell troubles of the whole lab by their symptoms",
        question=Matching(
            "abcdef",
            {
                "greedy text changes when speculation is on": "fca2067ea364848c",
                "one tenant's first tokens are faster right after another one asked the same": "7f86d8527273e4e3",
                "fluent answers turn into noise some thousand tokens on": "ba6577aa4a9fac86",
                "valid JSON up to a point, and then nothing": "3a6c9317a8a53dba",
                "the decode side's first token is right, the second is not": "43238b76ce5de85a",
                "twice the GPUs, and the same time per token": "25d20b983288e24f",
            },
            hint="Which of the six has to do with positions, which with time, and which with who shares what?",
        ),
    ),
    Exercise(
        id="5.33",
        title="For ever in so many blocks",
        kind="numeric",
        names=("answer_5_33",),
        points=1,
        minutes=2,
        objective="bound the memory of a sequence without end",
        question=Number(
            blocks_with_window,
            rel=0,
            unit="blocks",
            hint="The window slides, so its first token may be the last one of its block. How many blocks can 1,024 "
            "tokens in a row lie in?",
        ),
    ),
)
