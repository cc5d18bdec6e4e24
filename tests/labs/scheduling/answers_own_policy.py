"""Answers that prove the check of exercise 4.4."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE, BOUND, DECODES, BACK, ORDER, HEAD, FILLS = (
    "serves one request",
    "keeps a step within max_tokens",
    "decodes in every step",
    "never holds decodes back",
    "serves in the order of arrival",
    "lets nothing past the head of the queue",
    "uses what is left of a step",
)
START = """
class DecodesFirst(Policy):
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)

    def plan(self, step):
        room = self.max_tokens
"""
PREFILLS_FIRST = f"""{START}
        for sequence in step.running:
            if not sequence.is_decoding:
                room -= step.prefill(sequence, room)
        for sequence in step.waiting:
            num_tokens = step.admit(sequence, room)
            if not num_tokens:
                break
            room -= num_tokens
        for sequence in step.running:
            if room > 0 and sequence.is_decoding and step.decode(sequence):
                room -= 1
"""
PREFILL_ONLY = f"""{START}
        for sequence in step.running:
            if not sequence.is_decoding:
                step.prefill(sequence, room)
                return
        for sequence in step.waiting:
            if step.admit(sequence, room):
                return
        for sequence in step.running:
            step.decode(sequence)
"""
HOLDS_BACK = f"""{START}
        prefills = []
        for sequence in step.running:
            if not sequence.is_decoding:
                prefills.append(sequence)
            elif room > 0 and step.decode(sequence):
                room -= 1
        for sequence in prefills:
            room -= step.prefill(sequence, room)
        for sequence in step.waiting:
            num_tokens = step.admit(sequence, room)
            if not num_tokens:
                break
            room -= num_tokens
"""
OVERTAKES = f"""{START}
        prefills = []
        for sequence in step.running:
            if not sequence.is_decoding:
                prefills.append(sequence)
            elif step.decode(sequence):
                room -= 1
        for sequence in prefills:
            room -= step.prefill(sequence, room)
        for sequence in step.waiting:
            if room > 0:
                room -= step.admit(sequence, room)
"""
FORGETS_TO_COUNT = f"""{START}
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
        for sequence in step.running:
            if not sequence.is_decoding:
                step.prefill(sequence, room)
        for sequence in step.waiting:
            if not step.admit(sequence, room):
                break
"""
ONE_NEWCOMER = f"""{START}
        prefills = []
        for sequence in step.running:
            if not sequence.is_decoding:
                prefills.append(sequence)
            elif step.decode(sequence):
                room -= 1
        for sequence in prefills:
            room -= step.prefill(sequence, room)
        for sequence in step.waiting:
            step.admit(sequence, room)
            break
"""
NEWCOMERS_BEFORE_BEGUN = f"""{START}
        prefills = []
        for sequence in step.running:
            if not sequence.is_decoding:
                prefills.append(sequence)
            elif step.decode(sequence):
                room -= 1
        for sequence in step.waiting:
            num_tokens = step.admit(sequence, room)
            if not num_tokens:
                break
            room -= num_tokens
        for sequence in prefills:
            room -= step.prefill(sequence, room)
"""
BY_BUDGET = f"""{START}
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

BANKS = {
    "4.4": Bank(
        wrong=(
            Wrong("takes prefills for decodes", {2: "not sequence.is_decoding"}, ONE),
            Wrong("decodes nobody", {3: "False"}, ONE),
            Wrong("forgets the prefills it began", {4: "0"}, ONE),
            Wrong("lets nobody in", {5: "0"}, ONE),
            Wrong("a newcomer's whole prompt", {5: "step.admit(sequence)"}, ONE),
            Wrong("a chunk without bound", {4: "step.prefill(sequence)"}, ONE),
            Wrong(
                "a full chunk for each newcomer", {5: "step.admit(sequence, self.max_tokens) if room > 0 else 0"}, BOUND
            ),
            Wrong("a full chunk for the prefills", {4: "step.prefill(sequence, self.max_tokens)"}, BOUND),
            Wrong("does not count what it planned", FORGETS_TO_COUNT, BOUND),
            Wrong("prefills first, with what is left for decodes", PREFILLS_FIRST, DECODES),
            Wrong("pauses decodes for prefills", PREFILL_ONLY, DECODES),
            Wrong("holds decodes back", HOLDS_BACK, BACK),
            Wrong("a number for a rank", {1: "sequence.arrival_order"}, "ranks by a tuple of numbers"),
            Wrong("the last first", {1: "(-sequence.arrival_order, sequence.index)"}, ORDER),
            Wrong(
                "the shortest first", {1: "(sequence.num_prompt_tokens, sequence.arrival_order, sequence.index)"}, ORDER
            ),
            Wrong("goes on to the next when the head does not fit", OVERTAKES, HEAD),
            Wrong("one newcomer a step", ONE_NEWCOMER, FILLS),
            Wrong("newcomers before those who began", NEWCOMERS_BEFORE_BEGUN, FILLS),
            Wrong("half of the room", {5: "step.admit(sequence, (room + 1) // 2)"}, ONE),
        ),
        right=(
            Right("by the step's budget", BY_BUDGET),
            Right("the package's own composition", THE_PACKAGES),
            Right(
                "asks for the room again",
                {4: "step.prefill(sequence, max(room, 0))", 5: "step.admit(sequence, max(room, 0))"},
            ),
        ),
    ),
}

BANKS = opened_all(BANKS)
