"""A transfer that loses messages, between two real processes: rank 1 computes prompts, rank 0 decodes.

Three prompts travel layer by layer, each layer in two messages. Of the second prompt one message is lost, once; of the
third one is lost every time it is sent. Rank 0 asks the learner's `Transfer` what to do.
"""

import json
import os
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from twophase import LLM
from twophase_labs.many_machines.apart_ranks import answers
from twophase_labs.many_machines.hand_over import BLOCK_SIZE, make_pool, run_tokens
from twophase_labs.many_machines.one_process import OPTIONS, engine
from twophase_labs.many_machines.own_tier import BlocksOfRank1
from twophase_labs.many_machines.two_processes import receive, send

PROMPTS = tuple(tuple(range(start, start + 70)) for start in (700, 900, 1100))
HERE = (7, 3, 11, 0, 5)  # a prompt's blocks on rank 1; the last one is not full, and does not travel
CUT = 2  # a layer's first message has so many blocks
LOST = {(1, 7, CUT): 1, (2, 3, 0): 9}  # (prompt, layer, first block) of a message: how many times it is lost


@torch.no_grad()
def prefill_rank(take_layer: Callable[..., Any]) -> None:
    """Compute each prompt, send it, and send again the blocks that the other side asks for."""
    pool, lost = make_pool(engine()), Counter(LOST)
    for number, prompt in enumerate(PROMPTS):
        run_tokens(engine(), prompt, 0, HERE, pool)
        order, start = "resend", 0
        while order == "resend":
            for layer, kv in enumerate(pool.layers):
                for begin, end in ((start, CUT), (max(start, CUT), len(prompt) // BLOCK_SIZE)):
                    if begin < end and lost[number, layer, begin]:
                        lost[number, layer, begin] -= 1
                    elif begin < end:
                        parts = take_layer(kv, list(HERE[begin:end]), (end - begin) * BLOCK_SIZE)
                        send((layer, begin, end - begin, [part.clone() for part in parts]), 0)
            send((), 0)
            order, start = receive(0)


def main(path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        parts = runpy.run_path(path, run_name="own_parts")
        if os.environ["RANK"] == "1":
            prefill_rank(parts["take_layer"])
        else:
            tier = BlocksOfRank1(parts["put_layer"], parts["Transfer"])
            apart = answers(LLM(**OPTIONS | {"enable_prefix_caching": True, "kv_tier": tier}), PROMPTS)
            said = {"orders": tier.orders, "num_messages": tier.num_messages, "num_bytes": tier.num_bytes}
            print(json.dumps({"apart": apart, **said}))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
