"""Answers that prove the check of exercise 4.10."""

from twophase_labs.machine.bank import right, wrong

KEEPS_TO, SERVES_EVERY, BEATS_THE = "keeps to the limits", "serves every request", "beats the default policy"
MEETS_ENOUGH = "meets enough SLOs"

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

# fmt: off
BANKS = {
    "4.10": (
        wrong("more blocks than there are", '"max_num_seqs": 64, "max_num_batched_tokens": 512', "'num_blocks': 5000",
              by=KEEPS_TO),
        wrong("lets nothing in", NEVER_PREFILLS, by=SERVES_EVERY),
        wrong("late ones first", "self.is_late", "not self.is_late", by=BEATS_THE),
        wrong("the oldest first", "(self.is_late(sequence, step.now_s), sequence.num_uncomputed_tokens",
              "(sequence.request.arrival_s,", by=BEATS_THE),
        wrong("guesses the length of answers", READS_THE_FUTURE, by=MEETS_ENOUGH),
        right("the package's moves, and two queues", TWO_QUEUES),
        right("length as a priority", AGED_LENGTH),
    ),
}
