"""5.6 A tree of drafts: its mask, and the path that is accepted."""

from typing import Any

import torch

from twophase_labs.machine.checks import Draw, integers, reject
from twophase_labs.machine.exercise import exercise

TREE = exercise(
    "5.6", "A tree of drafts", "tree_mask accepted_path", points=3, minutes=12, lines=9, difficulty=2, time_limit_s=10
)
TREE.objective = "verify several continuations in one pass"
TREE.hints = (
    "A node follows one that comes before it in the list. What that one sees, this one sees as well, and itself.",
    "For the path, go through the nodes once, in order: is this one a child of the last accepted node, and is it the "
    "token that the model wants there?",
    "mask = torch.eye(len(parents), dtype=torch.bool)   # each sees itself\n"
    "for node, parent in enumerate(parents):\n"
    "    ...                                            # and what its parent sees\n"
    "\n"
    "path = [0]\n"
    "for node in range(1, len(parents)):\n"
    "    if ...:                                        # a child of path[-1], and what next_ids says behind it\n"
    "        path.append(node)",
)


def drawn_tree(draw: Draw, num_nodes: int, reach: int = 4) -> list[int]:
    """Parents, each at most `reach` nodes before its child."""
    return [-1, *(draw.integer(max(0, node - reach), node) for node in range(1, num_nodes))]


def way_to(parents: list[int], node: int) -> list[int]:
    """From node 0 down to this one."""
    return [node] if node == 0 else [*way_to(parents, parents[node]), node]


def require_mask(answer: Any, parents: list[int]) -> None:
    given = list(parents)
    got = answer.tree_mask(given)
    if given != parents:
        reject("the call modified its input, `parents`")
    num = len(parents)
    if not isinstance(got, torch.Tensor) or got.shape != (num, num) or got.dtype != torch.bool:
        told = f"{list(got.shape)}, {got.dtype}" if isinstance(got, torch.Tensor) else f"{got!r:.60}"
        reject(f"the mask of {num} nodes is a tensor [{num}, {num}] of torch.bool; got {told}")
    for node in range(num):
        for key in range(num):
            is_seen = key in way_to(parents, node)
            if bool(got[node, key]) != is_seen:
                reject(f"node {node} {'does not see' if is_seen else 'sees'} node {key}; it should"
                       f"{'' if is_seen else ' not'}", f"parents {parents}")  # fmt: skip


@TREE.check("sees all of a chain that is before it", num_nodes=(1, 2, 8, 90))
def sees_a_chain(answer: Any, draw: Draw, num_nodes: int) -> None:
    """In a chain, the mask is the causal one: a node sees itself and all nodes before it, up to node 0."""
    require_mask(answer, list(range(-1, num_nodes - 1)))


@TREE.check("does not see other branches", num_nodes=(3, 6, 12, 40))
def sees_no_other_branch(answer: Any, draw: Draw, num_nodes: int) -> None:
    """Two drafts for one position are two texts: neither is part of the other's past."""
    require_mask(answer, [-1, *[0] * (num_nodes - 1)])
    for _ in range(5):
        require_mask(answer, drawn_tree(draw, num_nodes))


def require_path(answer: Any, parents: list[int], token_ids: list[int], next_ids: list[int]) -> None:
    lists = list(parents), list(token_ids), list(next_ids)
    returned = answer.accepted_path(*lists)
    if lists != (parents, token_ids, next_ids):
        reject("the call modified one of its inputs")
    got = integers(returned)
    if got is None:
        reject(f"the result is a list of nodes; got {returned!r:.80}")
    expected = [0]
    while True:
        wanted = next_ids[expected[-1]]
        below = [n for n, p in enumerate(parents) if p == expected[-1] and token_ids[n] == wanted]
        if not below:
            break
        expected += below
    if got != expected:
        reject(f"the accepted path is {got}, expected {expected}", f"parents   {parents}", f"token_ids {token_ids}",
               f"next_ids  {next_ids}")  # fmt: skip


def drawn_drafts(draw: Draw, parents: list[int], share_right: float) -> tuple[list[int], list[int]]:
    """Tokens, different among the children of a node, and what the model says: often one of the drafts."""
    token_ids, next_ids = [0] * len(parents), []
    for node in range(len(parents)):
        children = [child for child, parent in enumerate(parents) if parent == node]
        drawn = draw.permutation(len(children) + 3).tolist()
        for child, token in zip(children, drawn, strict=False):
            token_ids[child] = token
        is_right = bool(children) and draw.integer(0, 1000) < 1000 * share_right
        next_ids.append(token_ids[draw.choice(children)] if is_right else 99)
    return token_ids, next_ids


@TREE.check("accepts node 0 alone when all drafts are rejected")
def accepts_nothing(answer: Any, draw: Draw) -> None:
    """The newest token of the text needs no verification; what the model says behind it is one token."""
    for num_nodes in (1, 2, 7):
        parents = drawn_tree(draw, num_nodes)
        require_path(answer, parents, *drawn_drafts(draw, parents, 0.0))


@TREE.check("follows what the model says", num_nodes=(3, 8, 20, 90))
def follows_the_model(answer: Any, draw: Draw, num_nodes: int) -> None:
    """From the last accepted node on: is one of its children the token that the model wants behind it? A token that
    would be right behind another node is another text's."""
    # Both children of node 0 are followed by a 5, which the model wants behind node 1 alone; then behind node 2 alone.
    require_path(answer, [-1, 0, 0, 1, 2], [9, 1, 2, 5, 5], [1, 5, 7, 8, 8])
    require_path(answer, [-1, 0, 0, 1, 2], [9, 1, 2, 5, 5], [2, 5, 5, 8, 8])
    require_path(answer, [-1, 0, 1, 0], [9, 3, 4, 7], [7, 4, 4, 4])
    require_path(answer, list(range(-1, num_nodes - 1)), list(range(num_nodes)), list(range(1, num_nodes + 1)))
    for share_right in (1.0, 0.7):
        for _ in range(10):
            parents = drawn_tree(draw, num_nodes)
            require_path(answer, parents, *drawn_drafts(draw, parents, share_right))
