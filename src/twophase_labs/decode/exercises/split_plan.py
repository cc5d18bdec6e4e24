"""3.11 How many splits each sequence of a ragged batch gets."""

from typing import Any

from twophase_labs.decode.split_machine import makespan, num_tiles
from twophase_labs.machine.checks import Draw, integers, reject
from twophase_labs.machine.exercise import exercise

PLAN = exercise("3.11", "A plan for a ragged batch", "split_plan", points=4, minutes=12, lines=7, difficulty=3)
PLAN.is_extra = True
PLAN.time_limit_s = 60
PLAN.objective = "balance the work of a ragged batch over the multiprocessors of a GPU"
PLAN.hints = (
    "Take one sequence of 32,768 tokens, 512 tiles, with 8 KV heads on 132 multiprocessors: how many programs can run "
    "at a time, and so how many splits does it want? Then think of sixty short ones beside it.",
    "If every program had about as many tiles as any other, a long sequence would have many splits and a short one 1: "
    "splits = tiles over tiles per program, rounded up. One number is left to choose, the tiles of a program; too few "
    "cost 4 tile times each, their START; too many leave multiprocessors idle at the end. `makespan` says what a "
    "choice is worth.",
    "Skeleton:\n"
    "tiles = [num_tiles(length) for length in lengths]\n"
    "plans = []\n"
    "for per_program in range(1, max(tiles) + 1):\n"
    "    plans.append([... for n in tiles])\n"
    "return min(plans, key=lambda splits: makespan(...))",
)
CLOSE = 1.1  # of the best plan whose programs have equally many tiles


def best_even(lengths: list[int], num_sms: int) -> int:
    """The shortest makespan of plans whose programs have the same number of tiles, or less."""
    tiles = [num_tiles(length) for length in lengths]
    sizes = sorted({-(-n // parts) for n in tiles for parts in range(1, n + 1)})
    return min(makespan(lengths, [-(-n // size) for n in tiles], num_sms) for size in sizes)


def judge(answer: Any, lengths: list[int], num_sms: int = 132) -> None:
    splits = planned(answer, lengths, num_sms)
    took, best = makespan(lengths, splits, num_sms), best_even(lengths, num_sms)
    if took > CLOSE * best:
        shown = f"{lengths}" if len(lengths) <= 6 else f"{lengths[:3]} ... {lengths[-2:]} ({len(lengths)} sequences)"
        reject(
            f"the plan for {shown} on {num_sms} multiprocessors takes {took} tile times; {best} are possible",
            f"its splits are {splits if len(splits) <= 6 else [*splits[:3], '...', *splits[-2:]]}",
        )


def planned(answer: Any, lengths: list[int], num_sms: int) -> list[int]:
    returned = answer.split_plan(list(lengths), num_sms)
    splits = integers(returned)
    if splits is None or len(splits) != len(lengths):
        reject(f"a plan is a list of {len(lengths)} whole numbers, one for each sequence; got {returned!r}")
    for length, n in zip(lengths, splits, strict=True):
        if not 1 <= n <= num_tiles(length):
            reject(
                f"{n} splits for a sequence of {length} tokens, which has {num_tiles(length)} tiles",
                "Every sequence has a split; one without a tile only costs its start.",
            )
    return list(splits)


@PLAN.check("gives every sequence its splits", lengths=([64], [100, 5000], [1, 1, 30_000]))
def gives_splits(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """A whole number for each sequence, from 1 to its number of tiles."""
    planned(answer, lengths, 132)


@PLAN.check("fills the machine for one sequence", length=(900, 32_768))
def one_sequence(answer: Any, draw: Draw, length: int) -> None:
    """One sequence alone wants about as many programs as there are multiprocessors, for its 8 KV heads together; a
    program more than that waits for a second round."""
    judge(answer, [length])


@PLAN.check("leaves a full machine alone", length=(400, 1_024))
def full_machine(answer: Any, draw: Draw, length: int) -> None:
    """Equally long sequences that keep all multiprocessors busy gain nothing by splits, and pay START for each."""
    judge(answer, [length] * 132)


@PLAN.check("splits the long one among short ones", at=(0, 60))
def long_among_short(answer: Any, draw: Draw, at: int) -> None:
    """Splits that suit the short ones leave the long one alone at the end, and splits that suit the long one cut the
    short ones to pieces. Sequences run in their order: a long one at the end starts late."""
    lengths = [draw.integer(300, 600) for _ in range(60)]
    lengths.insert(at, 16_384)
    judge(answer, lengths)


@PLAN.check("balances any batch", num_sequences=(2, 5, 17))
def any_batch(answer: Any, draw: Draw, num_sequences: int) -> None:
    """Programs of equal size end at about the same time. How large they should be depends on the whole batch."""
    judge(answer, [draw.integer(50, draw.choice((600, 4_000, 12_000))) for _ in range(num_sequences)])


@PLAN.check("suits other machines", num_sms=(16, 264))
def other_machines(answer: Any, draw: Draw, num_sms: int) -> None:
    """`num_sms` is an argument: the fewer multiprocessors, the larger the programs."""
    judge(answer, [16_384, draw.integer(900, 3_000)], num_sms)
