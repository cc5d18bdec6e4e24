"""The ragged batch that attention works on: one flat row of tokens, no padding between sequences."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where each token of a step lives, for S sequences and T tokens in all.

    Sequence s owns tokens [cu_query_lens[s], cu_query_lens[s+1]) of the flat batch; they are the last
    `query_lens[s]` of its `seq_lens[s]` tokens. Sequences [0, num_decodes) have exactly one token each.

    Worked example, block size 4: a decode at position 6 (blocks 5, 2) and a fresh prompt of 3 tokens (block 7):
    positions [6, 0, 1, 2], slot_mapping [2*4+2, 28, 29, 30], cu_query_lens [0, 1, 4], seq_lens [7, 3],
    block_tables [[5, 2, ...], [7, ...]].

    Attributes:
        positions: Position of each token in its sequence.
        slot_mapping: Where its K and V go: block * block_size + offset; negative: nowhere (graph padding).
        seq_lens: Tokens of each sequence, this step's included.
        cu_query_lens: Cumulative query lengths.
        block_tables: Block ids, padded with 0 to a multiple of 16 columns. -1 stands for a block that was freed: no
            query of the batch sees its positions, and it must not be read.
        num_decodes: Sequences at the front with one token each.
        query_lens_host, seq_lens_host: The lengths again as Python ints, so that no backend needs a device sync.
        groups: For a model with several kinds of layers: the same batch with each group's block tables and slots; this
            batch has the first group's. Empty for a model with one kind of layer.
    """

    positions: Int[Tensor, "T"]
    slot_mapping: Int[Tensor, "T"]
    seq_lens: Int[Tensor, "S"]
    cu_query_lens: Int[Tensor, "S+1"]
    block_tables: Int[Tensor, "S W"]
    num_decodes: int
    query_lens_host: tuple[int, ...]
    seq_lens_host: tuple[int, ...]
    groups: tuple["AttentionBatch", ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens_host)

    @property
    def max_seq_len(self) -> int:
        return max(self.seq_lens_host)
