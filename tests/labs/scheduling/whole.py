"""Whole cells for answers of open exercises: a right one, with numbered parts that a wrong one replaces."""

from collections.abc import Mapping

from tests.labs.decode.whole import opened
from twophase_labs.machine.exercise import Bank

ITERATION_LEVEL = """
def iteration_level(arrivals, lengths, num_slots):
    waiting = deque(range(len(lengths)))
    tokens_left = {}
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in waiting)
        num_free = num_slots - len(tokens_left)
        for _ in range(⟦1:min(num_free, num_there)⟧):
            request = waiting.popleft()
            tokens_left[request] = ⟦2:lengths[request]⟧
            first[request] = now
        now += 1
        for request in list(tokens_left):
            tokens_left[request] -= 1
            if ⟦3:tokens_left[request] == 0⟧:
                del tokens_left[request]
                spans[request] = ⟦4:(first[request], now)⟧
    return [spans[request] for request in range(len(lengths))]
""".replace("num_slots", "num_places")
PLAN_IN_CHUNKS = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = ⟦1:min(job.num_to_compute, budget)⟧
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and ⟦2:budget > 0⟧:
        job = waiting.popleft()
        running.append(job)
        num_tokens = ⟦3:min(job.num_to_compute, budget)⟧
        batch.append((job, num_tokens))
        budget -= num_tokens
    return batch
"""
DECODES_FIRST = """
class DecodesFirst(Policy):
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return ⟦1:(sequence.arrival_order, sequence.index)⟧

    def plan(self, step):
        room = self.max_tokens
        prefills = []
        for sequence in step.running:
            if ⟦2:sequence.is_decoding⟧:
                room -= int(⟦3:step.decode(sequence)⟧)
            else:
                prefills.append(sequence)
        for sequence in prefills:
            room -= ⟦4:step.prefill(sequence, room)⟧
        for sequence in step.waiting:
            num_tokens = ⟦5:step.admit(sequence, room)⟧
            if not num_tokens:
                break
            room -= num_tokens
"""
LATENCIES = """
from itertools import pairwise


def latencies(events):
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token":
            tokens_of[name].append(time_s)
    result = {}
    for name, arrived_s in arrived.items():
        tokens = tokens_of[name]
        ttft_s = ⟦1:tokens[0] - arrived_s if tokens else None⟧
        gaps = ⟦2:[later - earlier for earlier, later in pairwise(tokens)]⟧
        tpot_s = ⟦3:sum(gaps) / len(gaps) if gaps else None⟧
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
"""
PLAN_DECODES = """
def plan_decodes(running, num_free):
    left = ⟦1:sorted(running, key=lambda sequence: sequence.rank)⟧
    decoding, preempted = [], []
    while left:
        sequence = left[0]
        while sequence in left and num_free < sequence.num_needed:
            victim = ⟦2:left.pop()⟧
            num_free += ⟦3:victim.num_own⟧
            preempted.append(victim.name)
        if sequence in left:
            left.remove(sequence)
            num_free -= ⟦4:sequence.num_needed⟧
            decoding.append(sequence.name)
    return decoding, preempted
"""
CHALLENGER = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.cost, self.slo = cost, slo
        self.step_s = ⟦1:0.9 * slo.tpot_s⟧

    def rank(self, sequence):
        return by_priority(sequence)

    def is_late(self, sequence, now_s):
        needs_s = ⟦2:self.cost.per_step_s + self.cost.per_token_s * sequence.num_uncomputed_tokens⟧
        return ⟦3:now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s⟧

    def room_beside(self, decoding):
        cost, num_keys = self.cost, sum(len(sequence.token_ids) for sequence in decoding)
        each_s = ⟦4:cost.per_token_s + cost.per_sample_s⟧
        used_s = cost.per_step_s + each_s * len(decoding) + cost.per_context_s * num_keys
        fits = ⟦5:int((self.step_s - used_s) / cost.per_token_s)⟧
        return fits if decoding else max(fits, 1)

    def plan(self, step):
        decoding = [s for s in step.running if s.is_decoding]
        begun = [s for s in step.running if not s.is_decoding]

        def urgency(sequence):
            return ⟦6:(self.is_late(sequence, step.now_s), sequence.num_uncomputed_tokens)⟧

        for sequence in decoding:
            step.decode(sequence)
        room = self.room_beside(decoding)
        for sequence in sorted([*begun, *step.waiting], key=urgency):
            if room < 1:
                break
            if sequence in begun:
                room -= ⟦7:step.prefill(sequence, room)⟧
            else:
                room -= ⟦8:step.admit(sequence, room)⟧


my_limits = ⟦9:{"max_num_seqs": 64, "max_num_batched_tokens": 512}⟧
"""
TEMPLATES = {
    "4.2": ITERATION_LEVEL,
    "4.3": PLAN_IN_CHUNKS,
    "4.4": DECODES_FIRST,
    "4.6": LATENCIES,
    "4.7": PLAN_DECODES,
    "4.12": CHALLENGER,
}


def opened_all(banks: Mapping[str, Bank]) -> dict[str, Bank]:
    return {i: opened(bank, TEMPLATES[i]) if i in TEMPLATES else bank for i, bank in banks.items()}
