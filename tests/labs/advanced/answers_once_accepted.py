"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = opened_all(
    {
        "5.1": Bank(
            wrong=(
                Wrong(
                    "a non-ASCII salt is ignored",
                    {2: 'digest(salt.encode("ascii", "ignore"))'},
                    "is the chain of the text",
                ),
            ),
        ),
        "5.2": Bank(
            wrong=(
                Wrong(
                    "close lengthens the caller's list of hashes",
                    """
class PrefixStore:
    def __init__(self, num_blocks):
        self.num_users = [0] * num_blocks
        self.free = OrderedDict((block, None) for block in range(num_blocks))
        self.block_of = {}

    def lookup(self, hashes):
        blocks = []
        for one in hashes:
            if one not in self.block_of:
                break
            blocks.append(self.block_of[one])
        return blocks

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.num_users[block] += 1
            self.free.pop(block, None)
        while len(blocks) < num_blocks:
            block, old = self.free.popitem(last=False)
            if old is not None:
                self.block_of.pop(old)
            self.num_users[block] = 1
            blocks.append(block)
        self.block_of.update(zip(hashes, blocks, strict=False))
        return blocks, num_hit

    def close(self, blocks, hashes):
        names = hashes
        names += [None] * (len(blocks) - len(hashes))
        order = list(zip(blocks, names, strict=True))
        for block, name in reversed(order):
            self.num_users[block] -= 1
            if self.num_users[block] == 0:
                self.free[block] = name
                self.free.move_to_end(block, last=name is not None)
""",
                    "agrees with a plain store for long",
                ),
                Wrong(
                    "one pool of names for all stores",
                    """
class PrefixStore:
    def __init__(self, num_blocks):
        self.num_users = [0] * num_blocks
        self.free = OrderedDict((block, None) for block in range(num_blocks))
        self.block_of = PrefixStore.__dict__.get('names') or {}
        PrefixStore.names = self.block_of

    def lookup(self, hashes):
        blocks = []
        for one in hashes:
            if one not in self.block_of:
                break
            blocks.append(self.block_of[one])
        return blocks

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.num_users[block] += 1
            self.free.pop(block, None)
        while len(blocks) < num_blocks:
            block, old = self.free.popitem(last=False)
            if old is not None:
                self.block_of.pop(old)
            self.num_users[block] = 1
            blocks.append(block)
        self.block_of.update(zip(hashes, blocks, strict=False))
        return blocks, num_hit

    def close(self, blocks, hashes):
        names = hashes + [None] * (len(blocks) - len(hashes))
        order = list(zip(blocks, names, strict=True))
        for block, name in reversed(order):
            self.num_users[block] -= 1
            if self.num_users[block] == 0:
                self.free[block] = name
                self.free.move_to_end(block, last=name is not None)
""",
                    "shares a block with each request that needs it",
                ),
                Wrong(
                    "prefixes of at most 64 blocks",
                    """
class PrefixStore:
    def __init__(self, num_blocks):
        self.num_users = [0] * num_blocks
        self.free = OrderedDict((block, None) for block in range(num_blocks))
        self.block_of = {}

    def lookup(self, hashes):
        blocks = []
        for one in hashes[:64]:
            if one not in self.block_of:
                break
            blocks.append(self.block_of[one])
        return blocks

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.num_users[block] += 1
            self.free.pop(block, None)
        while len(blocks) < num_blocks:
            block, old = self.free.popitem(last=False)
            if old is not None:
                self.block_of.pop(old)
            self.num_users[block] = 1
            blocks.append(block)
        self.block_of.update(zip(hashes, blocks, strict=False))
        return blocks, num_hit

    def close(self, blocks, hashes):
        names = hashes + [None] * (len(blocks) - len(hashes))
        order = list(zip(blocks, names, strict=True))
        for block, name in reversed(order):
            self.num_users[block] -= 1
            if self.num_users[block] == 0:
                self.free[block] = name
                self.free.move_to_end(block, last=name is not None)
""",
                    "finds long prefixes",
                ),
            ),
        ),
        "5.3": Bank(
            wrong=(
                Wrong(
                    "at most 16 options",
                    {1: "[ask(known + option) for option in options[:16]]"},
                    "finds a prompt of one part",
                ),
            ),
            right=(
                Right(
                    "NumPy's argmin",
                    """
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        times = [ask(known + option) for option in options]
        pick = np.argmin(times)
        found.append(pick)
        known = known + options[pick]
    return found
""",
                ),
            ),
        ),
        "5.4": Bank(
            wrong=(
                Wrong(
                    "looks back 64 tokens only",
                    {2: "range(len(token_ids) - n - 1, max(-1, len(token_ids) - n - 65), -1)"},
                    "looks all the way back",
                ),
                Wrong(
                    "at most 8 drafts",
                    {3: "token_ids[start + n : start + n + min(num_draft, 8)]"},
                    "looks all the way back",
                ),
                Wrong(
                    "texts of at most 256 tokens",
                    {2: "range(len(token_ids) - n - 1, max(-1, len(token_ids) - 257), -1)"},
                    "looks all the way back",
                ),
                Wrong(
                    "agreements of at most 8", {1: "range(min(longest, 8), shortest - 1, -1)"}, "looks all the way back"
                ),
            ),
        ),
        "5.5": Bank(
            wrong=(
                Wrong(
                    "looks at three drafts",
                    """
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft[:3]):
        keep = min(1, p[i, token] / q[i, token])
        if chance.uniform() >= keep:
            left = np.clip(p[i] - q[i], 0, None)
            return [*tokens, chance.draw(left)]
        tokens.append(token)
    return [*tokens, chance.draw(p[len(draft)])]
""",
                    "accepts a draft that says the same",
                ),
                Wrong(
                    "writes into p", {2: "np.clip(np.subtract(p[i], q[i], out=p[i]), 0, None)"}, "keeps drafts in front"
                ),
            ),
        ),
        "5.7": Bank(
            wrong=(
                Wrong(
                    "a default of most = 8",
                    """
def expected_tokens(alpha, num_draft):
    if alpha == 1:
        return num_draft + 1
    return (1 - alpha ** (num_draft + 1)) / (1 - alpha)


def speed_up(alpha, num_draft, draft_cost, verify_cost=0.0):
    pass_cost = 1 + num_draft * (draft_cost + verify_cost)
    return expected_tokens(alpha, num_draft) / pass_cost


def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=8):
    return max(range(most + 1), key=lambda k: speed_up(alpha, k, draft_cost, verify_cost))
""",
                    "goes as far as it may",
                ),
                Wrong(
                    "at most 16 drafts",
                    {4: "max(range(min(most, 16) + 1), key=lambda k: speed_up(alpha, k, draft_cost, verify_cost))"},
                    "goes as far as it may",
                ),
                Wrong(
                    "never all of them",
                    {4: "max(range(max(1, most)), key=lambda k: speed_up(alpha, k, draft_cost, verify_cost))"},
                    "chooses the best number",
                ),
            ),
            right=(
                Right(
                    "NumPy's argmax",
                    {4: "np.argmax([speed_up(alpha, k, draft_cost, verify_cost) for k in range(most + 1)])"},
                ),
            ),
        ),
        "5.8": Bank(
            wrong=(
                Wrong(
                    "state 0 counts as a dead end",
                    """
def advance(machine, state, text):
    for char in text:
        state = machine.edges[state].get(char)
        if not state:
            return None
    return state

def token_mask(machine, state, texts, end_id):
    mask = torch.zeros(len(texts), dtype=torch.bool)
    for token_id, text in enumerate(texts):
        mask[token_id] = text != "" and advance(machine, state, text) is not None
    mask[end_id] = state in machine.accepting
    return mask
""",
                    "takes 0 for a state like any other",
                ),
                Wrong(
                    "remembers masks by state",
                    """
_masks = {}
def advance(machine, state, text):
    for char in text:
        state = machine.edges[state].get(char)
        if state is None:
            return None
    return state

def token_mask(machine, state, texts, end_id):
    key = (state, len(machine.edges), len(machine.accepting), tuple(texts), end_id)
    if key not in _masks:
        mask = torch.zeros(len(texts), dtype=torch.bool)
        for token_id, text in enumerate(texts):
            mask[token_id] = text != "" and advance(machine, state, text) is not None
        mask[end_id] = state in machine.accepting
        _masks[key] = mask
    return _masks[key]
""",
                    "knows one machine from another",
                ),
                Wrong(
                    "state 0 cannot be complete",
                    """
def advance(machine, state, text):
    for char in text:
        state = machine.edges[state].get(char)
        if state is None:
            return None
    return state


def token_mask(machine, state, texts, end_id):
    mask = torch.zeros(len(texts), dtype=torch.bool)
    for token_id, text in enumerate(texts):
        mask[token_id] = text != "" and advance(machine, state, text) is not None
    mask[end_id] = bool(state) and state in machine.accepting
    return mask
""",
                    "knows one machine from another",
                ),
                Wrong(
                    "texts of at most 64 characters",
                    """
def advance(machine, state, text):
    for char in text[:64]:
        state = machine.edges[state].get(char)
        if state is None:
            return None
    return state


def token_mask(machine, state, texts, end_id):
    mask = torch.zeros(len(texts), dtype=torch.bool)
    for token_id, text in enumerate(texts):
        mask[token_id] = text != "" and advance(machine, state, text) is not None
    mask[end_id] = state in machine.accepting
    return mask
""",
                    "knows one machine from another",
                ),
            ),
        ),
        "5.11": Bank(
            wrong=(
                Wrong(
                    "block sizes that are powers of two",
                    """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)
    num_sink_blocks = -(-num_sinks // block_size)
    first_seen = max(0, num_tokens + 1 - window)
    first_block = first_seen >> (block_size.bit_length() - 1)
    kept = []
    for i in range(num_blocks):
        if i < num_sink_blocks or i >= first_block:
            kept.append(i)
    return kept
""",
                    "keeps what the next token sees",
                ),
                Wrong(
                    "at most 64 blocks",
                    """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)
    num_sink_blocks = -(-num_sinks // block_size)
    first_seen = max(0, num_tokens + 1 - window)
    first_block = first_seen // block_size
    kept = []
    for i in range(min(num_blocks, 64)):
        if i < num_sink_blocks or i >= first_block:
            kept.append(i)
    return kept
""",
                    "keeps what the next token sees",
                ),
            ),
            right=(
                Right(
                    "NumPy's integers",
                    """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)
    num_sink_blocks = -(-num_sinks // block_size)
    first_seen = max(0, num_tokens + 1 - window)
    first_block = first_seen // block_size
    kept = []
    for i in range(num_blocks):
        if i < num_sink_blocks or i >= first_block:
            kept.append(np.int64(i))
    return kept
""",
                ),
            ),
        ),
        "5.13": Bank(
            wrong=(
                Wrong(
                    "windows of at most 4096", {2: "keys > queries - min(window, 4096)"}, "sees as far as the window"
                ),
            ),
        ),
        "5.14": Bank(
            wrong=(
                Wrong(
                    "what became impossible counts 0",
                    {4: "(p * (log_p - log_q)).nan_to_num(0, posinf=0, neginf=0)"},
                    "tells what became impossible",
                ),
                Wrong(
                    "perplexity capped at 1e4",
                    {2: "surprises(logits, targets).mean().clamp(max=9.2).exp().item()"},
                    "counts equal choices",
                ),
                Wrong(
                    "surprises capped at 100",
                    {1: "-log_probs[torch.arange(len(targets)), targets].clamp(min=-20)"},
                    "measures any surprise",
                ),
                Wrong(
                    "nothing is infinite",
                    {4: "torch.where((p > 0) & log_q.isfinite(), p * (log_p - log_q), 0)"},
                    "tells what became impossible",
                ),
            ),
            right=(Right("a tensor of one element", {2: "surprises(logits, targets).mean().exp()"}),),
        ),
    }
)
