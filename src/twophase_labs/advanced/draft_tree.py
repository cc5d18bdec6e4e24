"""A tree of drafts: grown by a head on hidden states, verified by SmolLM2 in one pass under a mask, and drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor
from transformers import DynamicCache

from twophase_labs.advanced.feature_drafts import Head
from twophase_labs.advanced.prefix_service import FIRST_TOKEN, shared_engine
from twophase_labs.kit.models import smollm2
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

TreeMask = Callable[[list[int]], Bool[Tensor, "N N"]]
AcceptedPath = Callable[[list[int], list[int], list[int]], list[int]]
Grow = Callable[[int, Any], "Tree"]


@dataclass(frozen=True)
class Tree:
    """Node 0 is the newest token of the text, the others are drafts; `parents` has the node that each one follows."""

    parents: list[int]
    token_ids: list[int]


@dataclass
class Written:
    """What came of it: the new tokens, and of each pass its tree and the accepted path."""

    token_ids: list[int] = field(default_factory=list)
    passes: list[tuple[Tree, list[int]]] = field(default_factory=list)

    @property
    def num_drafts(self) -> int:
        return sum(len(tree.parents) - 1 for tree, _ in self.passes)


def ids_of(asked: str) -> list[int]:
    """A question in the model's chat format, as token ids."""
    (output,) = shared_engine().chat([[{"role": "user", "content": asked}]], FIRST_TOKEN, use_tqdm=False)
    return list(output.prompt_token_ids)


def grower(head: Head, widths: Sequence[int]) -> Grow:
    """A function that grows a tree behind a token: behind each node of level i, the `widths[i]` likeliest tokens.

    A chain has the widths 1, 1, ... From the second level on the head reads its own estimates, as EAGLE does.
    """

    def grow(newest: int, hidden: Float[Tensor, " D"]) -> Tree:
        parents, token_ids, level = [-1], [newest], [(0, hidden)]
        for width in widths:
            below = []
            for node, before in level:
                behind = head.after(before, token_ids[node])
                for token in head.likeliest(behind, width).tolist():
                    below.append((len(parents), behind))
                    parents.append(node)
                    token_ids.append(token)
            level = below
        return Tree(parents, token_ids)

    return grow


@torch.inference_mode()
def write(
    prompt_ids: Sequence[int], num_tokens: int, grow: Grow, tree_mask: TreeMask, accepted_path: AcceptedPath
) -> Written:
    """Continue a text greedily, at least one token per pass."""
    model, _ = smollm2()
    past, newest, written = DynamicCache(), prompt_ids[-1], Written()
    hidden = model.model(torch.tensor([prompt_ids[:-1]]), past_key_values=past).last_hidden_state[0, -1]
    while len(written.token_ids) < num_tokens:
        tree, num_past = grow(newest, hidden), past.get_seq_length()
        mask = tree_mask(tree.parents)
        seen = torch.cat([torch.ones(len(mask), num_past, dtype=torch.bool), mask], dim=1)
        positions = num_past + mask.sum(1) - 1  # the depth of a node is how many nodes it sees besides itself
        states = model.model(
            torch.tensor([tree.token_ids]), attention_mask=seen[None, None], position_ids=positions[None],
            past_key_values=past,
        ).last_hidden_state[0]  # fmt: skip
        next_ids = model.lm_head(states).argmax(-1).tolist()
        path = accepted_path(tree.parents, tree.token_ids, next_ids)
        keep = [*range(num_past), *(num_past + node for node in path)]  # K and V of the other branches are dropped
        for layer in past.layers:
            layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
        written.token_ids += [next_ids[node] for node in path]
        newest, hidden = next_ids[path[-1]], states[path[-1]]
        written.passes.append((tree, path))
    return written


def draw_tree(tree: Tree, mask: Bool[Tensor, "N N"], path: Sequence[int], texts: Sequence[str]) -> Figure:
    """The tree, with the accepted path in green, and the mask of its nodes."""
    depths = [int(row.sum()) - 1 for row in mask]
    leaves = [node for node in range(len(depths)) if node not in tree.parents]
    height = {leaf: float(number) for number, leaf in enumerate(leaves)}
    for node in reversed(range(len(depths))):
        below = [height[child] for child, parent in enumerate(tree.parents) if parent == node]
        height.setdefault(node, sum(below) / max(1, len(below)))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 0.8 + 0.55 * len(leaves)), width_ratios=(2, 1), facecolor="white"
    )
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            left.plot((depths[parent], depths[node]), (height[parent], height[node]), color=LINE, zorder=0)
        box = {"facecolor": COLOURS[2] if node in path else EMPTY, "edgecolor": LINE, "boxstyle": "round"}
        ink = "white" if node in path else INK
        left.text(depths[node], height[node], f"{node}: {texts[node]!r}", ha="center", va="center", color=ink,
                  fontsize=8.5, bbox=box)  # fmt: skip
    left.set(xlim=(-0.5, max(depths) + 0.5), ylim=(len(leaves) - 0.4, -0.6), yticks=[], xticks=range(max(depths) + 1))
    left.set_xlabel("depth: the position behind the text")
    left.set_title("Drafts of one pass (green: accepted)", loc="left", fontsize=11)
    left.spines[:].set_visible(False)
    right.imshow(mask, cmap="Greys", vmin=0, vmax=1.4)
    right.set(xticks=range(len(depths)), yticks=range(len(depths)), xlabel="key: node", ylabel="query: node")
    right.set_title("The mask: which nodes a node sees", loc="left", fontsize=11)
    figure.tight_layout()
    plt.close(figure)
    return figure
