"""Answers that prove the check of exercise 4.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ORDINARY, BACK, CANCELLED, REFUSES, UNHARMED = (
    "lives an ordinary life",
    "may lose its blocks and come back",
    "may be cancelled anywhere",
    "refuses everything else",
    "is unharmed by a refusal",
)
TABLE = """
LEGAL = {
    "waiting": {"prefill", "finished"},
    "prefill": {"decoding", "preempted", "finished"},
    "decoding": {"preempted", "finished"},
    "preempted": {"prefill", "finished"},
    "finished": set(),
}
"""
APPENDS_FIRST = f"""{TABLE}

class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        before = self.states[-1]
        self.states.append(state)
        if state not in LEGAL[before]:
            raise IllegalTransition(f"{{before}} to {{state}}")
"""
BY_WAYS = """
LEGAL = {way: True for way in (
    ("waiting", "prefill"), ("prefill", "decoding"), ("prefill", "preempted"), ("decoding", "preempted"),
    ("preempted", "prefill"), ("waiting", "finished"), ("prefill", "finished"), ("decoding", "finished"),
    ("preempted", "finished"),
)}


class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if not LEGAL.get((self.states[-1], state), False):
            raise IllegalTransition(state)
        self.states = [*self.states, state]
"""
SOME_OTHER_COLLECTIONS = """
LEGAL = {
    "waiting": frozenset({"prefill", "finished"}),
    "prefill": ("decoding", "preempted", "finished"),
    "decoding": ["preempted", "finished"],
    "preempted": frozenset({"prefill", "finished"}),
    "finished": (),
}


class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if state not in LEGAL[self.states[-1]]:
            raise IllegalTransition(f"from {self.states[-1]} to {state}")
        self.states.append(state)
"""

BANKS = {
    "4.1": Bank(
        wrong=(
            Wrong("needs a token before it may end", {2: '{"decoding", "preempted"}'}, ORDINARY),
            Wrong("no preemption of a prefill", {2: '{"decoding", "finished"}'}, BACK),
            Wrong("no preemption of a decode", {3: '{"finished"}'}, BACK),
            Wrong("goes on writing after a preemption", {4: '{"decoding", "finished"}'}, BACK),
            Wrong("starts from the queue again", {4: '{"waiting", "finished"}'}, BACK),
            Wrong("must be served before it may go", {1: '{"prefill"}'}, CANCELLED),
            Wrong("cannot be cancelled while preempted", {4: '{"prefill"}'}, CANCELLED),
            Wrong("loses blocks it does not hold", {1: '{"prefill", "preempted", "finished"}'}, REFUSES),
            Wrong("writes without reading", {1: '{"prefill", "decoding", "finished"}'}, REFUSES),
            Wrong("reads its prompt twice", {3: '{"prefill", "preempted", "finished"}'}, REFUSES),
            Wrong("staying is a transition", {3: '{"decoding", "preempted", "finished"}'}, REFUSES),
            Wrong("rises from the dead", {5: '{"waiting"}'}, REFUSES),
            Wrong("allows everything", {6: "False"}, REFUSES),
            Wrong("asks the wrong end", {6: "self.states[-1] not in LEGAL[state]"}, ORDINARY),
            Wrong("appends before it asks", APPENDS_FIRST, UNHARMED),
            Wrong("LEGAL is a table of ways", BY_WAYS, "says which states may follow"),
        ),
        right=(
            Right("tuples and frozen sets", SOME_OTHER_COLLECTIONS),
            Right("asks with `not in set`", {6: "not {state} & set(LEGAL[self.states[-1]])"}),
        ),
    ),
}
