"""Answers that prove the checks of exercises 4.7 to 4.9."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BY_INDEX = """
def plan_decodes(running, num_free):
    order = sorted(running, key=lambda sequence: sequence.rank)
    first, last = 0, len(order)
    decoding, preempted = [], []
    while first < last:
        if order[first].num_needed <= num_free:
            num_free -= order[first].num_needed
            decoding.append(order[first].name)
            first += 1
        else:
            last -= 1
            num_free += order[last].num_own
            preempted.append(order[last].name)
    return decoding, preempted
"""
VICTIMS_BY_RANK = BY_INDEX.replace("return decoding, preempted", "return decoding, preempted[::-1]")
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
COST_LOOP = """
def swap_s(num_tokens, machine):
    return sum(2 * machine.block_bytes / machine.host_bytes_per_s for _ in range(0, num_tokens, machine.block_size))


def recompute_s(num_tokens, machine):
    pairs = sum(range(1, num_tokens + 1))
    return machine.token_s * num_tokens + machine.pair_s * pairs


def cheaper_way(num_tokens, num_host_free, machine):
    if len(range(0, num_tokens, machine.block_size)) > num_host_free:
        return "recompute"
    return min(("recompute", recompute_s(num_tokens, machine)), ("swap", swap_s(num_tokens, machine)),
               key=lambda pair: pair[1])[0]
"""
ADMIT_LOOP = """
def can_admit(newcomer, running, num_free, num_blocks, block_size, watermark):
    left = num_free
    for _ in range(0, newcomer.num_tokens, block_size):
        left -= 1
    if running:
        for one in [newcomer, *running]:
            slots = one.num_tokens + (-one.num_tokens) % block_size
            left -= one.max_num_tokens > slots + 1
        left -= math.ceil(watermark * num_blocks)
    return left >= 0
"""

BANKS = {
    "4.7": Bank(
        wrong=(
            Wrong("takes from the best rank", {2: "left.pop(0)"}, rejected_by="takes from the worst rank"),
            Wrong(
                "keeps the order they came in",
                {1: "list(running)"},
                rejected_by="lets all go on while there is room",
            ),
            Wrong(
                "takes from who has most",
                {2: "left.pop(max(range(len(left)), key=lambda i: left[i].num_own))"},
                rejected_by="takes from the worst rank",
            ),
            Wrong("the freed blocks are lost", {3: "1"}, rejected_by="goes on with the blocks set free"),
            Wrong(
                "every victim frees one more", {3: "victim.num_own + 1"}, rejected_by="goes on with the blocks set free"
            ),
            Wrong("nobody pays for the block", {4: "0"}, rejected_by="goes on with the blocks set free"),
            Wrong(
                "the victims in the order of rank",
                VICTIMS_BY_RANK,
                rejected_by="goes on with the blocks set free",
            ),
            Wrong("takes from those planned already", TAKES_PLANNED, rejected_by="lets the worst yield itself"),
            Wrong("one victim is enough", ONE_VICTIM, rejected_by="takes as many as it needs"),
        ),
        right=(
            Right("two indices", BY_INDEX),
            Right("the maximum of those left", BY_SETS),
            Right("a deque", BY_DEQUE),
        ),
    ),
    "4.9": Bank(
        wrong=(
            Wrong(
                "tokens, not blocks",
                {1: "num_tokens / machine.block_size"},
                rejected_by="moves whole blocks, out and in",
            ),
            Wrong("rounds down", {1: "num_tokens // machine.block_size"}, rejected_by="moves whole blocks, out and in"),
            Wrong(
                "out only",
                {2: "num_blocks * machine.block_bytes / machine.host_bytes_per_s"},
                rejected_by="moves whole blocks, out and in",
            ),
            Wrong("every key for every query", {3: "num_tokens**2"}, rejected_by="counts every token and every pair"),
            Wrong(
                "forgets the diagonal",
                {3: "num_tokens * (num_tokens - 1) // 2"},
                rejected_by="counts every token and every pair",
            ),
            Wrong(
                "forgets the layers' products",
                {4: "num_pairs * machine.pair_s"},
                rejected_by="counts every token and every pair",
            ),
            Wrong("always swaps", {5: "True"}, rejected_by="takes the cheaper way"),
            Wrong(
                "the dearer way",
                {5: "swap_s(num_tokens, machine) > recompute_s(num_tokens, machine)"},
                rejected_by="takes the cheaper way",
            ),
            Wrong("forgets the host's room", {6: "True"}, rejected_by="needs room on the host"),
            Wrong(
                "counts tokens of room",
                {6: "num_host_free * machine.block_size > num_tokens + 16"},
                rejected_by="needs room on the host",
            ),
        ),
        right=(
            Right("loops", COST_LOOP),
            Right(
                "math.ceil", {1: "int(np.ceil(num_tokens / machine.block_size))", 3: "(num_tokens**2 + num_tokens) / 2"}
            ),
        ),
    ),
    "4.8": Bank(
        wrong=(
            Wrong(
                "rounds the blocks down", {1: "num_tokens // block_size"}, rejected_by="counts the newcomer's blocks"
            ),
            Wrong(
                "everyone grows",
                {2: "True"},
                rejected_by="keeps nothing for one that cannot grow",
            ),
            Wrong(
                "tokens for slots",
                {2: "one.max_num_tokens - 1 > one.num_tokens"},
                rejected_by="keeps nothing for one that cannot grow",
            ),
            Wrong("nobody grows", {2: "False"}, rejected_by="leaves a block for each that may grow"),
            Wrong(
                "writes the last token",
                {2: "one.max_num_tokens > block_size * blocks_of(one.num_tokens)"},
                rejected_by="keeps nothing for one that cannot grow",
            ),
            Wrong(
                "forgets that the newcomer grows",
                {4: "sum(may_grow(one) for one in running)"},
                rejected_by="leaves a block for each that may grow",
            ),
            Wrong(
                "watermark of the free blocks",
                {3: "math.ceil(watermark * num_free)"},
                rejected_by="keeps the watermark",
            ),
            Wrong("rounds the watermark down", {3: "int(watermark * num_blocks)"}, rejected_by="keeps the watermark"),
            Wrong("no watermark", {3: "0"}, rejected_by="keeps the watermark"),
            Wrong("keeps it for one alone too", {5: "kept"}, rejected_by="gives all to one that is alone"),
            Wrong(
                "one block must stay",
                {6: "blocks_of(newcomer.num_tokens) + kept < num_free"},
                rejected_by="counts the newcomer's blocks",
            ),
        ),
        right=(
            Right("takes away step by step", ADMIT_LOOP),
            Right(
                "ceil",
                {1: "math.ceil(num_tokens / block_size)", 6: "num_free - kept >= blocks_of(newcomer.num_tokens)"},
            ),
        ),
    ),
}

BANKS = opened_all(BANKS)
