"""Answers that prove the checks of exercises 5.8 and 5.9."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

READS, STUCK, SINGLE, SEVERAL, END, EMPTY = (
    "reads a text character by character",
    "returns None where nothing leads on",
    "masks tokens of one character",
    "masks tokens of several characters",
    "lets the end come where the text is complete",
    "never allows a token without text",
)
SMALL, FINDS, BELOW, FURTHER, LEAVES, STATE_0 = (
    "takes small tries",
    "finds what can be read, and nothing else",
    "starts at the node it is given",
    "goes no further than the machine reads",
    "leaves the trie as it is",
    "takes 0 for a state like any other",
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
FILLS_THE_ROOT = """
def allowed_ids(machine, state, node):
    found = node.token_ids
    for char, child in node.children.items():
        if char in machine.edges[state]:
            found += allowed_ids(machine, machine.edges[state][char], child)
    return found
"""
SHARED_LIST = """
def allowed_ids(machine, state, node, found=[]):
    found += node.token_ids
    for char, child in node.children.items():
        if char in machine.edges[state]:
            allowed_ids(machine, machine.edges[state][char], child, found)
    return found
"""
ONE_LEVEL = """
def allowed_ids(machine, state, node):
    return [one for char, child in node.children.items() if char in machine.edges[state] for one in child.token_ids]
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
FROM_THE_EDGES = """
def allowed_ids(machine, state, node):
    level, found = [(state, node)], set()
    while level:
        for _, here in level:
            found |= set(here.token_ids)
        level = [
            (after, here.children[char])
            for at, here in level
            for char, after in machine.edges[at].items()
            if char in here.children
        ]
    return list(found)
"""
GENERATES = """
def allowed_ids(machine, state, node):
    def walk(at, here):
        yield from here.token_ids
        for char in machine.edges[at].keys() & here.children.keys():
            yield from walk(machine.edges[at][char], here.children[char])

    return list(walk(state, node))
"""

BANKS = opened_all(
    {
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
                    "state 0 counts as nowhere",
                    {2: 'text == "" or not advance(machine, state, text)'},
                    rejected_by=SINGLE,
                ),
                Wrong(
                    "the first character alone",
                    {2: 'text != "" and text[0] in machine.edges[state]'},
                    rejected_by=SEVERAL,
                ),
                Wrong(
                    "tokens of one character",
                    {2: "len(text) == 1 and advance(machine, state, text) is not None"},
                    rejected_by=SEVERAL,
                ),
                Wrong("may always end", {3: "True"}, rejected_by=END),
                Wrong("may never end", {3: "False"}, rejected_by=END),
                Wrong(
                    "may end where its text fits",
                    {3: "bool(mask[end_id]) or state in machine.accepting"},
                    rejected_by=END,
                ),
                Wrong("may end where nothing else comes", {3: "not mask.any()"}, rejected_by=END),
                Wrong("reads nothing well", {2: "advance(machine, state, text) is not None"}, rejected_by=EMPTY),
            ),
            right=(Right("recursively", RECURSIVE), Right("from the machine's side", WALKS_A_TRIE)),
        ),
        "5.9": Bank(
            wrong=(
                Wrong("all tokens", {2: "True", 3: "machine.edges[at].get(char, at)"}, SMALL),
                Wrong("never moves the machine", {3: "at"}, FINDS),
                Wrong("back to the start at each character", {3: "machine.edges[machine.start].get(char, at)"}, FINDS),
                Wrong(
                    "only tokens that complete the form",
                    {1: "here.token_ids if at in machine.accepting else []"},
                    SMALL,
                ),
                Wrong("one token of each text", {1: "here.token_ids[:1]"}, SMALL),
                Wrong("tokens at the leaves alone", {1: "[] if here.children else here.token_ids"}, SMALL),
                Wrong("tokens of one character", ONE_LEVEL, SMALL),
                Wrong("the text instead of the token", {1: "[here] if here.token_ids else []"}, SMALL),
                Wrong("not the node's own tokens", {1: "here.token_ids if here is not node else []"}, BELOW),
                Wrong("looks everywhere", LOOKS_EVERYWHERE, FURTHER),
                Wrong("collects in the root's list", FILLS_THE_ROOT, LEAVES),
                Wrong("one list for all calls", SHARED_LIST, SMALL),
                Wrong("gives a set", {4: "set(found)"}, SMALL),
                Wrong("`if after`: state 0 is no state", {2: "machine.edges[at].get(char)"}, STATE_0),
            ),
            right=(
                Right("recursively", WALKS_RECURSIVELY),
                Right("level by level, from the edges", FROM_THE_EDGES),
                Right("a generator", GENERATES),
            ),
        ),
    }
)
