"""One word for one thing: the terms of the course. `<!-- glossary -->` in a lab becomes their table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A term of the course.

    Attributes:
        elsewhere: What other texts call it, or what they call by its name.
    """

    name: str
    meaning: str
    elsewhere: str = ""


TERMS = (
    Term("request", "what a client asks of the engine: a prompt and how to continue it"),
    Term("prompt, completion", "the tokens that come with a request, and the tokens that the engine adds to them"),
    Term("prefill", "the phase that computes all tokens of a prompt together"),
    Term("decode", "the phase that computes one token of the completion at a time"),
    Term("step", "one pass of the engine: it schedules, runs the model once and hands out tokens", "iteration"),
    Term(
        "block",
        "the unit in which memory for keys and values is allocated: `block_size` tokens",
        "page, as in *paged attention*; in Triton kernels `PAGE` is this block, and `BLOCK_M` the size of a tile",
    ),
    Term("block table", "the blocks that hold a sequence's tokens, in the sequence's order", "page table"),
    Term("slot", "the place of one token in the pool of keys and values"),
    Term("batch slot", "one of the `max_num_seqs` places for running sequences", "sequence place, slot"),
    Term(
        "tile",
        "the part of a matrix, some queries and some keys, that one program of a kernel works on at once",
        "block",
    ),
    Term("element", "one number in a tensor"),
    Term("hit", "the tokens of a prompt whose keys and values were found in the prefix cache", "cached tokens"),
    Term("draft", "a token proposed cheaply, for the model to verify", "speculated token"),
    Term("LSE", "log-sum-exp, the logarithm of a sum of exponentials; in kernels to base 2"),
    Term("SLO", "a latency that most requests should stay below, such as a TTFT of 2 s", "target"),
    Term("TTFT", "time to first token: from a request's arrival to its first token"),
    Term("ITL", "inter-token latency: the time between two tokens of a completion", "TPOT is its mean"),
    Term("queue age", "how long the oldest request that was never scheduled has waited"),
    Term("rank", "one process of a group that computes together"),
    Term("canary", "a new version that answers a small share of the live requests before it answers all"),
    Term(
        "verifier",
        "what accepts or rejects: of drafts, the model; of completions, a check that costs less than the answer",
        "judge, reward model",
    ),
)


def as_markdown() -> str:
    """The terms as a table."""
    rows = [f"| **{t.name}** | {t.meaning} | {t.elsewhere} |" for t in TERMS]
    return "\n".join(["| term | in this course | elsewhere |", "|---|---|---|", *rows])
