"""Answers that prove the checks of exercises 4.7 and 4.8."""

from twophase_labs.machine.bank import right, wrong

LETS_ALL, TAKES_FROM = "lets all go on while there is room", "takes from the worst rank"
LETS_THE, GOES_ON = "lets the worst yield itself", "goes on with the blocks set free"
TAKES_AS, COUNTS_THE = "takes as many as it needs", "counts the blocks of the waiting request"
KEEPS_NOTHING, LEAVES_A = "keeps nothing for one that cannot grow", "leaves a block for each that may grow"
KEEPS_THE, GIVES_ALL = "keeps the watermark", "gives all to one that is alone"
HOLDS_FOR = "holds for any block size and length"

TAKES_PLANNED = """
def plan_decodes(running, num_free):
    order = sorted(running, key=lambda sequence: sequence.rank)
    decoding, preempted = [], []
    for sequence in order:
        if sequence.name in preempted:
            continue
        while num_free < sequence.num_needed:
            others = [one for one in order if one is not sequence and one.name not in preempted]
            if not others:
                break
            victim = others[-1]
            num_free += victim.num_own
            preempted.append(victim.name)
        decoding.append(sequence.name)
        num_free -= sequence.num_needed
    return [name for name in decoding if name not in preempted], preempted
"""
ONE_VICTIM = """
def plan_decodes(running, num_free):
    left = sorted(running, key=lambda sequence: sequence.rank)
    decoding, preempted = [], []
    while left:
        sequence = left[0]
        if num_free < sequence.num_needed:
            victim = left.pop()
            num_free += victim.num_own
            preempted.append(victim.name)
        if left and left[0] is sequence:
            left.remove(sequence)
            num_free -= sequence.num_needed
            decoding.append(sequence.name)
    return decoding, preempted
"""
BY_SETS = """
def plan_decodes(running, num_free):
    planned, lost = [], []
    for sequence in sorted(running, key=lambda one: one.rank):
        while sequence not in lost and sequence.num_needed > num_free:
            victim = max((one for one in running if one not in planned and one not in lost), key=lambda one: one.rank)
            lost.append(victim)
            num_free += victim.num_own
        if sequence not in lost:
            planned.append(sequence)
            num_free -= sequence.num_needed
    return [one.name for one in planned], [one.name for one in lost]
"""
BY_DEQUE = """
from collections import deque

def plan_decodes(running, num_free):
    left = deque(sorted(running, key=lambda one: one[1]))
    names = {True: [], False: []}
    while left:
        fits = left[0].num_needed <= num_free
        one = left.popleft() if fits else left.pop()
        num_free += -one.num_needed if fits else one.num_own
        names[fits] += [one.name]
    return [names[True], names[False]]
"""
ADMIT_LOOP = """
def can_admit(waiting, running, num_free, num_blocks, block_size, watermark):
    left = num_free
    for _ in range(0, waiting.num_tokens, block_size):
        left -= 1
    if running:
        for one in [waiting, *running]:
            slots = one.num_tokens + (-one.num_tokens) % block_size
            left -= one.max_num_tokens > slots + 1
        left -= math.ceil(watermark * num_blocks)
    return left >= 0
"""
# fmt: off
BANKS = {
    "4.7": (
        wrong("keeps the order they came in", "sorted(running, key=lambda sequence: sequence.rank", "list(running",
              by=LETS_ALL),
        wrong("takes from the best rank", "left.pop()", "left.pop(0)", by=TAKES_FROM),
        wrong("takes from those planned already", TAKES_PLANNED, by=LETS_THE),
        wrong("the freed blocks are lost", "victim.num_own", "1", by=GOES_ON),
        wrong("every victim frees one more", ".num_own", ".num_own + 1", by=GOES_ON),
        wrong("nobody pays for the block", "sequence.num_needed", "0", by=GOES_ON),
        wrong("one victim is enough", ONE_VICTIM, by=TAKES_AS),
        right("the maximum of those left", BY_SETS),
        right("a deque", BY_DEQUE),
    ),
    "4.8": (
        wrong("rounds the blocks down", {1: "num_tokens // block_size"}, by=COUNTS_THE),
        wrong("everyone grows", {2: "True"}, by=KEEPS_NOTHING),
        wrong("nobody grows", {2: "False"}, by=LEAVES_A),
        wrong("no watermark", {3: "0"}, by=KEEPS_THE),
        wrong("keeps it for one alone too", {5: "kept"}, by=GIVES_ALL),
        wrong("blocks of four", {1: "-(-num_tokens // 4)"}, by=HOLDS_FOR),
        wrong("looks at four others", "*running", "*running[:5]", by=HOLDS_FOR),
        wrong("no growth for whoever is a block short of 64", "one.max_num_tokens", "min(one.max_num_tokens, 128)",
              by=HOLDS_FOR),
        right("takes away step by step", ADMIT_LOOP),
        right("ceil",
              {1: "math.ceil(num_tokens / block_size)", 6: "num_free - kept >= blocks_of(waiting.num_tokens)"}),
    ),
}
