"""Answers that prove the check of exercise 3.11."""

from twophase_labs.machine.bank import right, wrong

GIVES, ONE, FULL = (
    "gives every sequence its splits",
    "fills the machine for one sequence",
    "leaves a full machine alone",
)
LONG, ANY, OTHER = "splits the long one among short ones", "balances any batch", "suits other machines"

ALL_16 = """
def split_plan(lengths, num_sms):
    return [16] * len(lengths)
"""
EQUAL = """
def split_plan(lengths, num_sms):
    tiles = [num_tiles(length) for length in lengths]
    return [min(n, max(1, num_sms // (8 * len(lengths)))) for n in tiles]
"""
EIGHT_TILES = """
def split_plan(lengths, num_sms):
    return [-(-num_tiles(length) // 8) for length in lengths]
"""
GREEDY = """
def split_plan(lengths, num_sms):
    tiles, best = [num_tiles(length) for length in lengths], [1] * len(lengths)
    for longest in sorted({-(-n // parts) for n in tiles for parts in range(1, min(n, 80) + 1)}):
        splits = [1 if n <= longest else -(-n // longest) for n in tiles]
        if makespan(lengths, splits, num_sms) < makespan(lengths, best, num_sms):
            best = splits
    return best
"""

# fmt: off
BANKS = {
    "3.11": (
        wrong("16 for all", ALL_16, by=GIVES),
        wrong("always eight tiles", EIGHT_TILES, by=ONE),
        wrong("as many for each", EQUAL, by=LONG),
        wrong("the shortest makespan of the longest sequence", "makespan(lengths, splits, num_sms)",
              "makespan([max(lengths)], [max(splits)], num_sms)", by=FULL),
        wrong("always 132 multiprocessors", "makespan(lengths, splits, num_sms)", "makespan(lengths, splits, 132)",
              by=OTHER),
        right("sizes that occur, the best so far", GREEDY),
        right("from large programs to small ones", "range(1, max(tiles) + 1)", "range(max(tiles), 0, -1)"),
    ),
}
