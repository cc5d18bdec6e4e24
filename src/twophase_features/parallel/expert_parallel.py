"""Expert parallelism: each rank holds some experts whole, and tokens travel to them (GShard, arXiv:2006.16668).

The ranks also share the attention by tensor parallelism, so all of them know all tokens of a step. In a layer
that has experts each rank takes an equal share of the tokens, as many as any other or fewer, and routes them; then

    dispatch   every (token, expert) row goes to the rank that holds the expert: an all-to-all
    compute    each rank runs its own experts over the rows that came from all ranks
    combine    the rows go back the way they came, a second all-to-all, and are added up with their weights
    gather     and every rank gets the tokens that the others have finished: an all-gather

How many rows go where depends on the tokens, so that an all-to-all of counts goes ahead. A token's rows are computed
and added up as by one process, in the same order; only how many rows an expert multiplies at once can differ.
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_features.experts.mixture import ComputeExperts, MixExperts, sort_by_expert
from twophase_features.parallel.peers import Peers


@final
class ExpertParallel:
    """The function with which a `LlamaModel` dispatches its experts' rows."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def __call__(self, x: Float[Tensor, "T N"], mix: MixExperts, compute: ComputeExperts) -> Float[Tensor, "T N"]:
        def compute_everywhere(rows: Tensor, counts: Tensor) -> Tensor:
            return self._dispatch_and_combine(rows, counts, compute)

        size = -(-x.shape[0] // self._peers.world_size)  # the last rank has fewer tokens, or none
        start = size * self._peers.rank
        part = x.new_zeros(size, x.shape[1])
        mine = mix(x[start : start + size], compute_everywhere)
        part[: len(mine)] = mine
        whole = x.new_empty(size * self._peers.world_size, x.shape[1])
        self._peers.all_gather(whole, part, "the other ranks' tokens")
        return whole[: x.shape[0]]

    def _dispatch_and_combine(
        self, rows: Float[Tensor, "P N"], counts: Int[Tensor, "E"], compute: ComputeExperts
    ) -> Float[Tensor, "P N"]:
        """Each row through its expert, wherever that is; `counts` is of all experts, rank by rank."""
        peers = self._peers
        sent = counts.view(peers.world_size, -1)
        received = torch.empty_like(sent)  # [ranks, experts of this rank]
        peers.all_to_all(received, sent, "the number of rows for each expert")
        num_sent, num_received = sent.sum(dim=1).tolist(), received.sum(dim=1).tolist()

        inbox = rows.new_empty(sum(num_received), rows.shape[1])
        peers.all_to_all(inbox, rows, "rows for this rank's experts", num_received, num_sent)
        experts = torch.arange(sent.shape[1], device=rows.device).repeat(peers.world_size)
        by_expert, totals = sort_by_expert(experts.repeat_interleave(received.flatten()), sent.shape[1])
        outbox = torch.empty_like(inbox)
        outbox[by_expert] = compute(inbox[by_expert], totals)

        back = torch.empty_like(rows)
        peers.all_to_all(back, outbox, "rows that other ranks' experts have computed", num_sent, num_received)
        return back
