"""Answers that prove the checks of exercises 5.8 and 5.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

READS, STUCK, SINGLE, SEVERAL, END, EMPTY = (
    "reads a text character by character",
    "returns None where nothing leads on",
    "masks tokens of one character",
    "masks tokens of several characters",
    "lets the end come where the text is complete",
    "never allows a token without text",
)
HIDES, KEEPS, PLACE, ASKS, FORM, CUT = (
    "hides what cannot come",
    "leaves the other logits alone",
    "moves the machine along",
    "asks the model with the answer so far",
    "ends with a text of the form",
    "says when it was cut",
)
RECURSIVE = """
def advance(machine, state, text):
    if text == "":
        return state
    following = machine.edges[state].get(text[0])
    return None if following is None else advance(machine, following, text[1:])


def token_mask(machine, state, texts, end_id):
    def may_come(token_id, text):
        if token_id == end_id:
            return state in machine.accepting
        return bool(text) and advance(machine, state, text) is not None

    return torch.tensor([may_come(token_id, text) for token_id, text in enumerate(texts)])
"""
WALKS_A_TRIE = """
def advance(machine, state, text):
    for char in text:
        if char not in machine.edges[state]:
            return None
        state = machine.edges[state][char]
    return state


def token_mask(machine, state, texts, end_id):
    ids_of = {}
    for token_id, text in enumerate(texts):
        ids_of.setdefault(text, []).append(token_id)
    prefixes = {text[:cut] for text in ids_of for cut in range(1, len(text) + 1)}
    mask = torch.zeros(len(texts), dtype=torch.bool)
    found = [("", state)]
    while found:
        text, here = found.pop()
        if text:
            mask[ids_of.get(text, [])] = True
        found += [(text + c, after) for c, after in machine.edges[here].items() if text + c in prefixes]
    mask[end_id] = state in machine.accepting
    return mask
"""
GIVES_UP_LATE = """
def advance(machine, state, text):
    for char in text:
        if char not in machine.edges[state]:
            return state
        state = machine.edges[state][char]
    return state


def token_mask(machine, state, texts, end_id):
    mask = torch.zeros(len(texts), dtype=torch.bool)
    for token_id, text in enumerate(texts):
        mask[token_id] = text != "" and all(c in machine.edges[state] for c in text)
    mask[end_id] = state in machine.accepting
    return mask
"""
CHOOSES_FIRST = """
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    state, ids = machine.start, []
    while len(ids) < max_tokens:
        token_id = choose(next_logits(ids))
        if not token_mask(machine, state, texts, end_id)[token_id]:
            continue
        if token_id == end_id:
            return ids, "stop"
        ids.append(token_id)
        state = advance(machine, state, texts[token_id])
    return ids, "length"
"""
KEEPS_THE_END = """
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    state, ids = machine.start, []
    while len(ids) < max_tokens:
        mask = token_mask(machine, state, texts, end_id)
        token_id = choose(next_logits(ids).masked_fill(~mask, -math.inf))
        ids.append(token_id)
        if token_id == end_id:
            return ids, "stop"
        state = advance(machine, state, texts[token_id])
    return ids, "length"
"""
STOPS_EARLY = """
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    state, ids = machine.start, []
    while len(ids) < max_tokens:
        mask = token_mask(machine, state, texts, end_id)
        token_id = choose(next_logits(ids).masked_fill(~mask, -math.inf))
        if token_id == end_id:
            return ids, "stop"
        ids.append(token_id)
        state = advance(machine, state, texts[token_id])
    return ids, "stop"
"""
FROM_THE_TEXT = """
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    ids = []
    for _ in range(max_tokens):
        state = advance(machine, machine.start, "".join(texts[i] for i in ids))
        mask = token_mask(machine, state, texts, end_id)
        logits = torch.where(mask, next_logits(ids), torch.tensor(-math.inf))
        token_id = choose(logits)
        if token_id == end_id:
            return ids, "stop"
        ids = [*ids, token_id]
    return ids, "length"
"""
ADDS_A_BIAS = """
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    ids, state, reason = [], machine.start, "length"
    while len(ids) < max_tokens and reason == "length":
        bias = torch.full((len(texts),), -math.inf)
        bias[token_mask(machine, state, texts, end_id)] = 0
        token_id = choose(next_logits(ids) + bias)
        if token_id == end_id:
            reason = "stop"
        else:
            ids.append(token_id)
            state = advance(machine, state, texts[token_id])
    return ids, reason
"""

BANKS = {
    "5.8": Bank(
        wrong=(
            Wrong("never moves", {1: "machine.edges[state].get(char) and state"}, rejected_by=READS),
            Wrong("always from the start", {1: "machine.edges[machine.start].get(char)"}, rejected_by=READS),
            Wrong("stays where it is stuck", {1: "machine.edges[state].get(char, state)"}, rejected_by=STUCK),
            Wrong("knows no way out", {1: "machine.edges[state][char]"}, rejected_by=STUCK),
            Wrong("gives up late", GIVES_UP_LATE, rejected_by=STUCK),
            Wrong(
                "from the start of the form",
                {2: 'text != "" and advance(machine, machine.start, text) is not None'},
                rejected_by=SINGLE,
            ),
            Wrong(
                "only what completes it",
                {2: 'text != "" and advance(machine, state, text) in machine.accepting'},
                rejected_by=SINGLE,
            ),
            Wrong(
                "state 0 counts as nowhere", {2: 'text == "" or not advance(machine, state, text)'}, rejected_by=SINGLE
            ),
            Wrong(
                "the first character alone", {2: 'text != "" and text[0] in machine.edges[state]'}, rejected_by=SEVERAL
            ),
            Wrong(
                "tokens of one character",
                {2: "len(text) == 1 and advance(machine, state, text) is not None"},
                rejected_by=SEVERAL,
            ),
            Wrong("may always end", {3: "True"}, rejected_by=END),
            Wrong("may never end", {3: "False"}, rejected_by=END),
            Wrong(
                "may end where its text fits", {3: "bool(mask[end_id]) or state in machine.accepting"}, rejected_by=END
            ),
            Wrong("may end where nothing else comes", {3: "not mask.any()"}, rejected_by=END),
            Wrong("reads nothing well", {2: "advance(machine, state, text) is not None"}, rejected_by=EMPTY),
        ),
        right=(Right("recursively", RECURSIVE), Right("from the machine's side", WALKS_A_TRIE)),
    ),
}
