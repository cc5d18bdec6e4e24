"""Answers that prove the check of exercise 4.12."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BOUNDED_DEFAULT = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        decodes_first(step, 128)


my_limits = {}
"""
PROMPTS_ONLY = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.house = PrefillFirstPolicy()

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        self.house.plan(step)


my_limits = {"max_num_batched_tokens": 512}
"""
LAST_COME_FIRST = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return (-sequence.request.arrival_s, sequence.seq_id, sequence.index)

    def plan(self, step):
        decodes_first(step)


my_limits = {"max_num_seqs": 12}
"""
NEVER_PREFILLS = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)


my_limits = {}
"""
TWICE = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        decodes_first(step)
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)


my_limits = {}
"""
READS_THE_FUTURE = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return (sequence.max_num_tokens, sequence.arrival_order, sequence.index)

    def plan(self, step):
        decodes_first(step, 160)


my_limits = {}
"""
WAITS = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        pass

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        if len(step.running) + step.num_waiting < 8:
            step.wait_until(step.now_s + 5)
        else:
            decodes_first(step)


my_limits = {}
"""
NO_POLICY = """
class Challenger:
    def __init__(self, cost, slo):
        pass


my_limits = {}
"""
AGED_LENGTH = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.cost, self.step_s = cost, 0.93 * slo.tpot_s

    def rank(self, sequence):
        return (sequence.request.arrival_s, sequence.arrival_order, sequence.index)

    def plan(self, step):
        left_s, waiting = self.step_s - self.cost.per_step_s, list(step.waiting)
        prefills = [(len(s.request.prompt_token_ids), 0, s.seq_id, s) for s in step.running if not s.is_decoding]
        prefills += [(len(s.request.prompt_token_ids), 1, s.seq_id, s) for s in waiting]
        for sequence in step.running:
            if sequence.is_decoding and step.decode(sequence):
                left_s -= self.cost.per_token_s + self.cost.per_context_s * len(sequence.token_ids)
        for _, is_new, _, sequence in sorted(prefills, key=lambda entry: entry[:3]):
            most = int(left_s / self.cost.per_token_s)
            if most < 1 and not step.is_empty:
                return
            most = max(1, most)
            num_tokens = step.admit(sequence, most) if is_new else step.prefill(sequence, most)
            left_s -= num_tokens * self.cost.per_token_s


my_limits = {"max_num_seqs": 40, "max_num_batched_tokens": 300}
"""

TOKENS_BOUNDED = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.slo, self.max_tokens = slo, int((slo.tpot_s - cost.per_step_s) / cost.per_token_s)

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        decodes_and_begun(step, self.max_tokens)
        last_s = step.now_s - 0.8 * self.slo.ttft_s
        for sequence in sorted(step.waiting, key=lambda s: (s.request.arrival_s < last_s, s.num_prompt_tokens)):
            if not step.budget or not step.admit(sequence):
                break


my_limits = {}
"""
TWO_QUEUES = """
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.cost, self.slo = cost, slo
        self.max_tokens = int((0.8 * slo.tpot_s - cost.per_step_s) / cost.per_token_s)

    def rank(self, sequence):
        return (sequence.request.arrival_s, sequence.arrival_order, sequence.index)

    def plan(self, step):
        decodes_and_begun(step, self.max_tokens)
        last_s = step.now_s - 0.8 * self.slo.ttft_s
        waiting = sorted(step.waiting, key=lambda one: one.num_prompt_tokens)
        in_time = [one for one in waiting if one.request.arrival_s > last_s]
        for sequence in in_time + [one for one in waiting if one not in in_time]:
            if not step.budget or not step.admit(sequence):
                break


my_limits = {"max_num_seqs": 64}
"""

BANKS = {
    "4.12": Bank(
        wrong=(
            Wrong("more blocks than there are", {9: '{"num_blocks": 5000}'}, rejected_by="keeps to the limits"),
            Wrong("more places than there are", {9: '{"max_num_seqs": 256}'}, rejected_by="keeps to the limits"),
            Wrong("no policy at all", NO_POLICY, rejected_by="keeps to the limits"),
            Wrong("lets nothing in", NEVER_PREFILLS, rejected_by="serves every request"),
            Wrong("decodes twice", TWICE, rejected_by="serves every request"),
            Wrong("small chunks alone", BOUNDED_DEFAULT, rejected_by="beats the default policy"),
            Wrong("prefills first", PROMPTS_ONLY, rejected_by="beats the default policy"),
            Wrong("waits for company", WAITS, rejected_by="serves every request"),
            Wrong("last come, first served", LAST_COME_FIRST, rejected_by="meets enough SLOs"),
            Wrong("guesses the length of answers", READS_THE_FUTURE, rejected_by="meets enough SLOs"),
            Wrong("bounds the tokens of a step, not its time", TOKENS_BOUNDED, rejected_by="beats the default policy"),
            Wrong("the oldest first", {6: "(sequence.request.arrival_s,)"}, rejected_by="beats the default policy"),
            Wrong(
                "late ones first",
                {6: "(not self.is_late(sequence, step.now_s), sequence.num_uncomputed_tokens)"},
                rejected_by="beats the default policy",
            ),
        ),
        right=(
            Right("length as a priority", AGED_LENGTH),
            Right("the package's moves, and two queues", TWO_QUEUES),
            Right(
                "a smaller margin, and fewer places",
                {1: "0.95 * slo.tpot_s", 9: '{"max_num_seqs": 48, "watermark": 0.02}'},
            ),
        ),
    ),
}

BANKS = opened_all(BANKS)
