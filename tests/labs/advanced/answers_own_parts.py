"""Answers that prove the check of exercise 5.16."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LAST, PENDING, RUNS, END = (
    "leaves the last token to be computed",
    "stops at the first pending name",
    "counts drafts that follow one another",
    "ends a run at a token without text",
)
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
SKIPS_PENDING = """
def names_to_ask(names, num_tokens, block_size, pending):
    return [name for name in names[: (num_tokens - 1) // block_size] if name not in pending]


def num_allowed(advance, machine, state, drafts, texts):
    for number, draft in enumerate(drafts):
        state = advance(machine, state, texts[draft])
        if state is None or texts[draft] == "":
            return number
    return len(drafts)
"""

BANKS = {
    "5.16": Bank(
        wrong=(
            Wrong("all full blocks", {1: "num_tokens // block_size"}, LAST),
            Wrong("one block less", {1: "max(0, num_tokens // block_size - 1)"}, LAST),
            Wrong("one block more", {1: "(num_tokens - 1) // block_size + 1"}, LAST),
            Wrong("asks for pending ones", {2: "False"}, PENDING),
            Wrong("stops where nothing is pending", {2: "pending and name not in pending"}, PENDING),
            Wrong("nothing at all while anything is pending", {2: "pending"}, PENDING),
            Wrong("leaves pending ones out, and goes on behind them", SKIPS_PENDING, PENDING),
            Wrong("each draft from the same state", {3: "advance(machine, state, texts[draft]) and state"}, RUNS),
            Wrong("always from the start", {3: "advance(machine, machine.start, texts[draft])"}, RUNS),
            Wrong("the draft's number as its text", {3: "advance(machine, state, str(draft))"}, RUNS),
            Wrong("allows the end", {4: "state is None"}, END),
            Wrong(
                "ends in a state of completion",
                {4: 'texts[draft] == "" or state is None or state in machine.accepting'},
                RUNS,
            ),
            Wrong("`not state`", {4: 'not state or texts[draft] == ""'}, RUNS),
            Wrong("state 0 is nowhere", {4: 'texts[draft] == "" or not state or state > 3'}, RUNS),
        ),
        right=(
            Right("counts first", NO_LOOP),
            Right("the longest run that can be read", FROM_THE_START),
        ),
    ),
}
