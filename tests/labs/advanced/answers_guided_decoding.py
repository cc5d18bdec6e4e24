"""Answers that prove the checks of exercises 5.7 and 5.8."""

from twophase_labs.machine.bank import right, wrong

READS, STUCK = "reads a text character by character", "returns None where nothing leads on"
SINGLE, SEVERAL = "masks tokens of one character", "masks tokens of several characters"
END, EMPTY = "lets the end come where the text is complete", "never allows a token without text"
TAKES_0, KNOWS_ONE = "takes 0 for a state like any other", "knows one machine from another"
SMALL, FINDS = "takes small tries", "finds what can be read, and nothing else"
BELOW, FURTHER = "starts at the node it is given", "goes no further than the machine reads"
LEAVES = "leaves the trie as it is"

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
LOOKS_EVERYWHERE = """
def advance(machine, state, text):
    for char in text:
        state = None if state is None else machine.edges[state].get(char)
    return state

def allowed_ids(machine, state, node):
    def below(here):
        yield "", here.token_ids
        for char, child in here.children.items():
            yield from ((char + text, ids) for text, ids in below(child))

    return [one for text, ids in below(node) for one in ids if advance(machine, state, text) is not None]
"""
COLLECTS_IN_THE_ROOT = """found, to_visit = [], [(node, state)]
    while to_visit:
        here, at = to_visit.pop()
        found += here.token_ids
        for char, child in here.children.items():
            if char in machine.edges[at]:
                to_visit.append((child, machine.edges[at][char]))"""
GENERATES = """
def allowed_ids(machine, state, node):
    def walk(at, here):
        yield from here.token_ids
        for char in machine.edges[at].keys() & here.children.keys():
            yield from walk(machine.edges[at][char], here.children[char])

    return list(walk(state, node))
"""
WALKS_RECURSIVELY = """
def advance(machine, state, text):
    for char in text:
        state = None if state is None else machine.edges[state].get(char)
    return state

def allowed_ids(machine, state, node):
    found = list(node.token_ids)
    for char, child in node.children.items():
        after = advance(machine, state, char)
        if after is not None:
            found.extend(allowed_ids(machine, after, child))
    return found
"""

# fmt: off
BANKS = {
    "5.7": (
        wrong("always from the start", {1: "machine.edges[machine.start].get(char)"}, by=READS),
        wrong("knows no way out", {1: "machine.edges[state][char]"}, by=STUCK),
        wrong("state 0 counts as nowhere", {2: 'text == "" or not advance(machine, state, text)'}, by=SINGLE),
        wrong("tokens of one character", 'text != ""', "len(text) == 1", by=SEVERAL),
        wrong("may always end", {3: "True"}, by=END),
        wrong("reads nothing well", {2: "advance(machine, state, text) is not None"}, by=EMPTY),
        wrong("state 0 counts as a dead end", "state is None", "not state", by=TAKES_0),
        wrong("texts of at most 64 characters", "in text", "in text[:64]", by=KNOWS_ONE),
        right("recursively", RECURSIVE),
        right("from the machine's side", WALKS_A_TRIE),
    ),
    "5.8": (
        wrong("gives a set", "return found", "return set(found)", by=SMALL),
        wrong("one token of each text", "here.token_ids", "here.token_ids[:1]", by=SMALL),
        wrong("never moves the machine", "machine.edges[at][char]", "at", by=FINDS),
        wrong("back to the start at each character", ".edges[at][char]", ".edges[machine.start].get(char, at)",
              by=FINDS),
        wrong("`if after`: state 0 is no state", "char in machine.edges[at]", "machine.edges[at].get(char)",
              by=TAKES_0),
        wrong("not the node's own tokens", "here.token_ids", "here.token_ids if here is not node else []", by=BELOW),
        wrong("looks everywhere", LOOKS_EVERYWHERE, by=FURTHER),
        wrong("collects in the root's list", COLLECTS_IN_THE_ROOT,
              "found = node.token_ids\n    for char, child in node.children.items():\n        if char in machine.edges[state]:\n            found += allowed_ids(machine, machine.edges[state][char], child)",
              by=LEAVES),
        right("a generator", GENERATES),
        right("recursively", WALKS_RECURSIVELY),
    ),
}
