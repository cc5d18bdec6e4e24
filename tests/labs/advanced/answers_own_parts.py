"""Answers that prove the check of exercise 5.10."""

from twophase_labs.machine.bank import right, wrong

LAST, PENDING = "leaves the last token to be computed", "stops at the first pending name"
RUNS, END = "counts drafts that follow one another", "ends a run at a token without text"

NO_LOOP = """
def names_to_ask(names, num_tokens, block_size, pending):
    most = min(len(names), max(0, num_tokens - 1) // block_size)
    stop = next((i for i in range(most) if names[i] in pending), most)
    return names[:stop]

def num_allowed(advance, machine, state, drafts, texts):
    count = 0
    while count < len(drafts) and texts[drafts[count]]:
        state = advance(machine, state, texts[drafts[count]])
        if state is None:
            break
        count += 1
    return count
"""
FROM_THE_START = """
def names_to_ask(names, num_tokens, block_size, pending):
    ready = []
    for index, name in enumerate(names):
        if name in pending or block_size * (index + 1) > num_tokens - 1:
            return ready
        ready = ready + [name]
    return ready

def num_allowed(advance, machine, state, drafts, texts):
    for count in range(len(drafts), 0, -1):
        run = [texts[draft] for draft in drafts[:count]]
        if all(run) and advance(machine, state, "".join(run)) is not None:
            return count
    return 0
"""

# fmt: off
BANKS = {
    "5.10": (
        wrong("all full blocks", {1: "num_tokens // block_size"}, by=LAST),
        wrong("one block more", {1: "(num_tokens - 1) // block_size + 1"}, by=LAST),
        wrong("asks for pending ones", {2: "False"}, by=PENDING),
        wrong("nothing at all while anything is pending", {2: "pending"}, by=PENDING),
        wrong("stops where nothing is pending", {2: "pending and name not in pending"}, by=PENDING),
        wrong("`not state`", {4: 'not state or texts[draft] == ""'}, by=RUNS),
        wrong("the draft's number as its text", {3: "advance(machine, state, str(draft))"}, by=RUNS),
        wrong("allows the end", {4: "state is None"}, by=END),
        right("counts first", NO_LOOP),
        right("the longest run that can be read", FROM_THE_START),
    ),
}
