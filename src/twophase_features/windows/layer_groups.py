"""Layers of different kinds, put into groups of equal size, so that one pool of blocks serves them all.

A block holds K and V of one group's layers, for `block_size` tokens, and a sequence has blocks of its own in each
group. So what a sliding layer no longer sees is given back, and can serve any other layer of any sequence. (vLLM's
hybrid KV cache manager shares a pool in this way: docs.vllm.ai, design/hybrid_kv_cache_manager.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from twophase.model.config import ModelConfig

MOST_PADDING = 1 / 8  # of the layers: fewer groups mean fewer block tables, and room for layers that are not there


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """Which layers share blocks.

    Attributes:
        size: Layers whose K and V a block has room for. The last group of a kind may have fewer.
        sees_all: For each group, whether its queries see all keys, and not a window of them; groups that do go first.
        layout: For each layer, its group and its index in the group.
    """

    size: int
    sees_all: tuple[bool, ...]
    layout: tuple[tuple[int, int], ...]


def layer_groups(config: ModelConfig) -> LayerGroups | None:
    """Groups of a model's layers with their own blocks; None: all layers are of one kind."""
    return group_layers(config.sees_all) if config.is_mixed else None


def group_layers(sees_all: Sequence[bool]) -> LayerGroups:
    """Groups for layers that see all keys, or a window of them.

    As large as padding allows: at most `MOST_PADDING` more layers than there are. Worked example, Gemma 3 1B: 4 layers
    see all keys and 22 do not; groups of 5 would need room for 30 layers, and groups of 4 need it for 28, so there are
    1 + 6 groups.
    """
    counts = [sum(sees_all), len(sees_all) - sum(sees_all)]
    most = len(sees_all) * (1 + MOST_PADDING)
    size = next(n for n in range(max(counts), 0, -1) if n * sum(-(-count // n) for count in counts) <= most)
    num_full = -(-counts[0] // size)
    layout = []
    for layer, is_full in enumerate(sees_all):
        group, index = divmod(sum(other == is_full for other in sees_all[:layer]), size)
        layout.append((group if is_full else num_full + group, index))
    num_groups = num_full + -(-counts[1] // size)
    return LayerGroups(size, tuple(group < num_full for group in range(num_groups)), tuple(layout))
