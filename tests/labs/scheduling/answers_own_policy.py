"""Answers that prove the check of exercise 4.4."""

from twophase_labs.machine.bank import right, wrong

RANKS_BY, ONE, BOUND = "ranks by a tuple of numbers", "serves one request", "keeps a step within max_tokens"
DECODES, BACK, ORDER = "decodes in every step", "never holds decodes back", "serves in the order of arrival"
HEAD, FILLS = "lets nothing past the head of the queue", "uses what is left of a step"
RANKS_EVERY, GIVES_PREFILLS = "ranks every sequence", "gives prefills no more than there is room"

THE_PACKAGES = """
from twophase.scheduling.policy import by_priority, decodes_first

class DecodesFirst(Policy):
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        decodes_first(step, self.max_tokens)
"""
BY_BUDGET = """
class DecodesFirst(Policy):
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)

    def plan(self, step):
        room = self.max_tokens

        full = step.budget - room
        decodes = [sequence for sequence in step.running if sequence.is_decoding]
        prefills = [sequence for sequence in step.running if not sequence.is_decoding]
        for sequence in decodes:
            step.decode(sequence)
        for sequence in prefills:
            step.prefill(sequence, max(0, step.budget - full))
        for sequence in step.waiting:
            if step.budget <= full or not step.admit(sequence, step.budget - full):
                return
"""

# fmt: off
BANKS = {
    "4.4": (
        wrong("a number for a rank", "(sequence.arrival_order, sequence.index)", "sequence.arrival_order", by=RANKS_BY),
        wrong("decodes nobody", "step.decode(sequence)", "False", by=ONE),
        wrong("a full chunk for the prefills", ".prefill(sequence, room", ".prefill(sequence, self.max_tokens",
              by=BOUND),
        wrong("pauses decodes for prefills", "if sequence.is_decoding:",
              "if sequence.is_decoding and any(not s.is_decoding for s in step.running):\n                continue\n            elif sequence.is_decoding:",
              by=DECODES),
        wrong("holds decodes back", "room -= step.decode(sequence)", "room -= room > 0 and step.decode(sequence)",
              by=BACK),
        wrong("the last first", "(sequence.arrival_order, sequence.index)",
              "(-sequence.arrival_order, sequence.index)", by=ORDER),
        wrong("goes on to the next when the head does not fit", "room -= step.prefill(sequence, room)",
              "room -= step.prefill(sequence, room)\n        for sequence in step.waiting:\n            if room > 0:\n                room -= step.admit(sequence, room)",
              "for sequence in step.waiting:\n            num_tokens = step.admit(sequence, room)\n            if not num_tokens:\n                break\n            room -= num_tokens",
              "pass", by=HEAD),
        wrong("chunks of at most 64", ".prefill(sequence, room", ".prefill(sequence, min(room, 64)", by=FILLS),
        wrong("completions of a request have one rank", "(sequence.arrival_order, sequence.index",
              "(sequence.arrival_order,", by=RANKS_EVERY),
        wrong("a prefill gets a token even without room", ".prefill(sequence, room", ".prefill(sequence, max(room, 1)",
              by=GIVES_PREFILLS),
        right("the package's own composition", THE_PACKAGES),
        right("by the step's budget", BY_BUDGET),
    ),
}
