"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "4.1": Bank(
        wrong=(
            Wrong(
                "an unknown state is a KeyError",
                """
LEGAL = {
    "waiting": {"prefill", "finished"},
    "prefill": {"decoding", "preempted", "finished"},
    "decoding": {"preempted", "finished"},
    "preempted": {"prefill", "finished"},
    "finished": set(),
}
WAYS = {(a, b): b in LEGAL[a] for a in LEGAL for b in LEGAL}

class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if not WAYS[self.states[-1], state]:
            raise IllegalTransition(f"a request cannot go from {self.states[-1]} to {state}")
        self.states.append(state)
""",
                "refuses everything else",
            ),
            Wrong(
                "substrings pass",
                """
LEGAL = {
    "waiting": {"prefill", "finished"},
    "prefill": {"decoding", "preempted", "finished"},
    "decoding": {"preempted", "finished"},
    "preempted": {"prefill", "finished"},
    "finished": set(),
}

class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if not any(state in legal for legal in LEGAL[self.states[-1]]):
            raise IllegalTransition("no")
        self.states.append(state)
""",
                "refuses everything else",
            ),
            Wrong(
                "LEGAL says other things than Life does",
                """
LEGAL = {"waiting": set(), "prefill": set(), "decoding": set(), "preempted": set(), "finished": set()}
NEXT = {
    "waiting": {"prefill", "finished"},
    "prefill": {"decoding", "preempted", "finished"},
    "decoding": {"preempted", "finished"},
    "preempted": {"prefill", "finished"},
    "finished": set(),
}

class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if state not in NEXT[self.states[-1]]:
            raise IllegalTransition("no")
        self.states.append(state)
""",
                "says which states may follow",
            ),
        ),
    ),
    "4.2": Bank(
        wrong=(
            Wrong("batches of at most 32", {1: "min(num_slots, num_there, 32)"}, "takes those who are there"),
            Wrong(
                "looks at the first 16 in the queue",
                """
def static_batching(arrivals, lengths, num_slots):
    queue = deque(zip(arrivals, lengths, strict=True))
    spans, now = [], 0
    while queue:
        now = max(now, queue[0][0])
        num_there = sum(arrival <= now for arrival, _ in list(queue)[:16])
        size = min(num_slots, num_there)
        batch = [queue.popleft()[1] for _ in range(size)]
        spans += [(now, now + length) for length in batch]
        now += max(batch)
    return spans


def slot_use(spans, num_slots):
    start, stop = min(first for first, _ in spans), max(end for _, end in spans)
    tokens = sum(end - first for first, end in spans)
    possible = num_slots * (stop - start)
    return tokens / possible
""",
                "takes those who are there",
            ),
        ),
    ),
    "4.4": Bank(
        wrong=(
            Wrong(
                "an idle clock stands still",
                """
def iteration_level(arrivals, lengths, num_slots):
    waiting = deque(range(len(lengths)))
    tokens_left = {}
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in list(waiting)[:16])
        num_free = num_slots - len(tokens_left)
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
    "4.6": Bank(
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
    "4.7": Bank(
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
    "4.10": Bank(
        wrong=(
            Wrong(
                "an arrival at 0.0 counts as none",
                """
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
    "4.11": Bank(
        wrong=(
            Wrong(
                "a first token at once (0.0) counts as none",
                """
def percentile(values, percent):
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is in 0 to 100, got {percent}")
    in_order = sorted(values)
    position = (len(in_order) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(in_order) - 1)
    return in_order[below] + (position - below) * (in_order[above] - in_order[below])


def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    kept = 0
    for request in requests:
        ttft_s, tpot_s = request["ttft_s"], request["tpot_s"]
        is_soon = bool(ttft_s) and ttft_s <= max_ttft_s
        is_smooth = tpot_s is None or tpot_s <= max_tpot_s
        kept += is_soon and is_smooth
    return kept / window_s
""",
                "wants both limits kept",
            ),
            Wrong(
                "refuses 100.0001 only from 101 on",
                """
def percentile(values, percent):
    if not -1 < percent < 101:
        raise ValueError(f"a percentile is in 0 to 100, got {percent}")
    in_order = sorted(values)
    position = (len(in_order) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(in_order) - 1)
    return in_order[below] + (position - below) * (in_order[above] - in_order[below])


def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    kept = 0
    for request in requests:
        ttft_s, tpot_s = request["ttft_s"], request["tpot_s"]
        is_soon = ttft_s is not None and ttft_s <= max_ttft_s
        is_smooth = tpot_s is None or tpot_s <= max_tpot_s
        kept += is_soon and is_smooth
    return kept / window_s
""",
                "refuses what is no percentage",
            ),
            Wrong(
                "a gap of 0.0 counts as none",
                {5: "tpot_s is None or 0 < tpot_s <= max_tpot_s"},
                "wants both limits kept",
            ),
            Wrong("the first 1,000 values", {1: "sorted(values[:1000])"}, "agrees with numpy"),
            Wrong(
                "whole percents",
                """
def percentile(values, percent):
    if not 0 <= int(percent) <= 100:
        raise ValueError(f"a percentile is in 0 to 100, got {percent}")
    in_order = sorted(values)
    position = (len(in_order) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(in_order) - 1)
    return in_order[below] + (position - below) * (in_order[above] - in_order[below])


def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    kept = 0
    for request in requests:
        ttft_s, tpot_s = request["ttft_s"], request["tpot_s"]
        is_soon = ttft_s is not None and ttft_s <= max_ttft_s
        is_smooth = tpot_s is None or tpot_s <= max_tpot_s
        kept += is_soon and is_smooth
    return kept / window_s
""",
                "refuses what is no percentage",
            ),
        ),
        right=(
            Right(
                "NumPy's percentile",
                """
def percentile(values, percent):
    return np.percentile(values, percent)

def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    def keeps(request):
        ttft_s, tpot_s = request["ttft_s"], request["tpot_s"]
        return ttft_s is not None and ttft_s <= max_ttft_s and (tpot_s is None or tpot_s <= max_tpot_s)

    return np.float64(sum(map(keeps, requests))) / window_s
""",
            ),
        ),
    ),
    "4.14": Bank(
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
                "lets everyone go on while there is room",
            ),
        ),
    ),
    "4.15": Bank(
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
    "4.17": Bank(
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
    "4.18": Bank(
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
                "ten levels at most", {2: "arrival_s + min(priority, 10) * patience_s"}, "lets those who waited pass"
            ),
            Wrong("ties by arrival", {3: "(seems_s, arrival_s, number)"}, "lets the number decide ties"),
        ),
    ),
    "4.21": Bank(
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
