"""Answers that prove the check of exercise 5.6."""

from twophase_labs.machine.bank import right, wrong

CHAIN, BRANCHES = "sees all of a chain that is before it", "does not see other branches"
NOTHING, FOLLOWS = "accepts node 0 alone when all drafts are rejected", "follows what the model says"

UPWARDS = """
def tree_mask(parents):
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        at = node
        while at >= 0:
            mask[node, at] = True
            at = parents[at]
    return mask


def accepted_path(parents, token_ids, next_ids):
    children = {}
    for node, parent in enumerate(parents):
        children[parent, token_ids[node]] = node
    path = [0]
    while (path[-1], next_ids[path[-1]]) in children:
        path.append(children[path[-1], next_ids[path[-1]]])
    return path
"""
BY_POWERS = """
def tree_mask(parents):
    step = torch.zeros(len(parents), len(parents))
    for node, parent in enumerate(parents[1:], start=1):
        step[node, parent] = 1
    seen, reached = torch.eye(len(parents)), torch.eye(len(parents))
    for _ in parents:
        reached = reached @ step
        seen = seen + reached
    return seen > 0


def accepted_path(parents, token_ids, next_ids, node=0):
    for child in range(node + 1, len(parents)):
        if parents[child] == node and token_ids[child] == next_ids[node]:
            return [node] + accepted_path(parents, token_ids, next_ids, child)
    return [node]
"""

# fmt: off
BANKS = {
    "5.6": (
        wrong("not itself", "torch.eye(len(parents), dtype=torch.bool)",
              "torch.zeros(len(parents), len(parents), dtype=torch.bool)", by=CHAIN),
        wrong("its parent alone", "mask[node] |= mask[parent]", "mask[node, parent] = True", by=CHAIN),
        wrong("all nodes before it", "mask[node] |= mask[parent]", "mask[node, :node] = True", by=BRANCHES),
        wrong("node 0 sees the last node", "if parent >= 0:", "if True:", by=CHAIN),
        wrong("node 0 is not in the path", "return path", "return path[1:]", by=NOTHING),
        wrong("one draft at most", "path.append(node)", "return [0, node]", by=FOLLOWS),
        wrong("what the model says at the draft itself", "== next_ids[path[-1]]", "== next_ids[node]", by=FOLLOWS),
        right("upwards, and by a dict of children", UPWARDS),
        right("by powers of the tree, recursively", BY_POWERS),
    ),
}
