"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "4.2": Bank(
        wrong=(
            Wrong(
                "an idle clock stands still",
                """
def iteration_level(arrivals, lengths, num_places):
    waiting = deque(range(len(lengths)))
    tokens_left = {}
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in list(waiting)[:16])
        num_free = num_places - len(tokens_left)
        for _ in range(min(num_free, num_there)):
            request = waiting.popleft()
            tokens_left[request] = lengths[request]
            first[request] = now
        now += 1
        for request in list(tokens_left):
            tokens_left[request] -= 1
            if tokens_left[request] == 0:
                del tokens_left[request]
                spans[request] = (first[request], now)
    return [spans[request] for request in range(len(lengths))]
""",
                "lets requests join while others run",
            ),
            Wrong(
                "at most 16 at work",
                {1: "min(num_free, num_there, 16 - len(tokens_left))"},
                "lets requests join while others run",
            ),
        ),
    ),
    "4.3": Bank(
        wrong=(
            Wrong(
                "never more than 64 tokens to one job",
                """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget > 0:
        job = waiting.popleft()
        running.append(job)
        num_tokens = min(job.num_to_compute, budget, 64)
        batch.append((job, num_tokens))
        budget -= num_tokens
    return batch
""",
                "leaves no room unused",
            ),
            Wrong(
                "at most 256 tokens a step",
                """
def plan_in_chunks(running, waiting, budget):
    batch, budget = [], min(budget, 256)
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget > 0:
        job = waiting.popleft()
        running.append(job)
        num_tokens = min(job.num_to_compute, budget)
        batch.append((job, num_tokens))
        budget -= num_tokens
    return batch
""",
                "leaves no room unused",
            ),
        ),
    ),
    "4.4": Bank(
        wrong=(
            Wrong(
                "a prefill gets a token even without room",
                {4: "step.prefill(sequence, max(room, 1))"},
                "gives prefills no more than there is room",
            ),
            Wrong("completions of a request have one rank", {1: "(sequence.arrival_order,)"}, "ranks every sequence"),
            Wrong("chunks of at most 64", {4: "step.prefill(sequence, min(room, 64))"}, "uses what is left of a step"),
        ),
    ),
    "4.6": Bank(
        wrong=(
            Wrong(
                "an arrival at 0.0 counts as none",
                """
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
        ttft_s = tokens[0] - arrived_s if tokens and arrived_s else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
""",
                "keeps requests apart",
            ),
            Wrong(
                "a gap of 0.0 counts as none",
                """
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
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = sum(gaps) / len(gaps) if sum(gaps) else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
""",
                "takes 0.0 for a time like any other",
            ),
            Wrong(
                "tokens at 0.0 are lost",
                """
from itertools import pairwise


def latencies(events):
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token" and time_s:
            tokens_of[name].append(time_s)
    result = {}
    for name, arrived_s in arrived.items():
        tokens = tokens_of[name]
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
""",
                "takes 0.0 for a time like any other",
            ),
            Wrong(
                "at most 128 tokens",
                """
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
        tokens = tokens_of[name][:128]
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
""",
                "keeps requests apart",
            ),
        ),
        right=(
            Right(
                "NumPy's means",
                """
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
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = np.mean(gaps) if gaps else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
""",
            ),
        ),
    ),
    "4.7": Bank(
        wrong=(
            Wrong(
                "sorts the caller's list",
                """
def plan_decodes(running, num_free):
    running.sort(key=lambda sequence: sequence.rank)
    left, decoding, preempted = running, [], []
    while left:
        sequence = left[0]
        while sequence in left and num_free < sequence.num_needed:
            victim = left.pop()
            num_free += victim.num_own
            preempted.append(victim.name)
        if sequence in left:
            left.remove(sequence)
            num_free -= sequence.num_needed
            decoding.append(sequence.name)
    return decoding, preempted
""",
                "lets all go on while there is room",
            ),
        ),
    ),
    "4.9": Bank(
        wrong=(
            Wrong(
                "swaps on a tie",
                {5: "swap_s(num_tokens, machine) <= recompute_s(num_tokens, machine)"},
                "recomputes when in doubt",
            ),
            Wrong(
                "fits by tokens of 16",
                """
def swap_s(num_tokens, machine):
    num_blocks = -(-num_tokens // machine.block_size)
    return 2 * num_blocks * machine.block_bytes / machine.host_bytes_per_s


def recompute_s(num_tokens, machine):
    num_pairs = num_tokens * (num_tokens + 1) // 2
    return num_tokens * machine.token_s + num_pairs * machine.pair_s


def cheaper_way(num_tokens, num_host_free, machine):
    is_faster = swap_s(num_tokens, machine) < recompute_s(num_tokens, machine)
    fits = -(-num_tokens // 16) <= num_host_free
    return "swap" if is_faster and fits else "recompute"
""",
                "needs room on the host",
            ),
            Wrong(
                "blocks of powers of two",
                {1: "(num_tokens + machine.block_size - 1) >> (machine.block_size.bit_length() - 1)"},
                "moves whole blocks, out and in",
            ),
        ),
        right=(Right("NumPy's ceil", {1: "np.ceil(num_tokens / machine.block_size)"}),),
    ),
    "4.8": Bank(
        wrong=(
            Wrong(
                "no growth for whoever is a block short of 64",
                {2: "min(one.max_num_tokens, 128) - 1 > block_size * blocks_of(one.num_tokens)"},
                "holds for any block size and length",
            ),
            Wrong("blocks of four", {1: "-(-num_tokens // 4)"}, "holds for any block size and length"),
            Wrong(
                "looks at four others",
                {4: "sum(may_grow(one) for one in [*running[:5], newcomer])"},
                "holds for any block size and length",
            ),
        ),
    ),
    "4.10": Bank(
        wrong=(
            Wrong(
                "ties by priority, not by number",
                """
def aged_rank(priority, arrival_s, number, patience_s):
    if patience_s is None:
        return (priority, arrival_s, number)
    seems_s = arrival_s + priority * patience_s
    return (seems_s, priority, number)
""",
                "lets the number decide ties",
            ),
            Wrong(
                "a patience of 0 is none",
                """
def aged_rank(priority, arrival_s, number, patience_s):
    if not patience_s:
        return (priority, arrival_s, number)
    seems_s = arrival_s + priority * patience_s
    return (seems_s, number)
""",
                "lets the number decide ties",
            ),
            Wrong(
                "ten levels at most", {2: "arrival_s + min(priority, 10) * patience_s"}, "lets those that waited pass"
            ),
            Wrong("ties by arrival", {3: "(seems_s, arrival_s, number)"}, "lets the number decide ties"),
        ),
    ),
    "4.11": Bank(
        wrong=(
            Wrong(
                "drops all negatives at once",
                """
def fit_costs(records):
    times = np.array([record.seconds for record in records])
    features = [(1, r.tokens, r.samples, r.context, r.pairs) for r in records]
    rows = np.array(features) * (1 / times)[:, None]
    columns = list(range(5))
    while True:
        x = np.linalg.lstsq(rows[:, columns], np.ones(len(times)), rcond=None)[0]
        if (x >= 0).all():
            break
        columns = [c for c, value in zip(columns, x) if value >= 0]
    costs = np.zeros(5)
    costs[columns] = x
    return costs
""",
                "has the least relative errors",
            ),
            Wrong(
                "drops the worst negative, one by one",
                """
def fit_costs(records):
    times = np.array([record.seconds for record in records])
    features = [(1, r.tokens, r.samples, r.context, r.pairs) for r in records]
    rows = np.array(features) * (1 / times)[:, None]
    columns = list(range(5))
    while True:
        x = np.linalg.lstsq(rows[:, columns], np.ones(len(times)), rcond=None)[0]
        if (x >= 0).all():
            break
        columns.pop(int(x.argmin()))
    costs = np.zeros(5)
    costs[columns] = x
    return costs
""",
                "has the least relative errors",
            ),
        ),
    ),
}

BANKS = opened_all(BANKS)
