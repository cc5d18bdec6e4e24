"""The learner's hand-over and recovery in two real processes: rank 1 computes prompts, rank 0 decodes.

Three prompts travel layer by layer, each layer in two messages. Of the second prompt one message is lost, once; of the
third one is lost every time it is sent. Rank 0 asks the learner's `Transfer` what to do.
"""

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from twophase import SamplingParams
from twophase_labs.many_machines.hand_over import BLOCK_SIZE, make_pool, run_tokens
from twophase_labs.many_machines.one_process import engine
from twophase_labs.many_machines.own_source import write_module
from twophase_labs.many_machines.two_processes import said_by_rank_0, why_not

PROMPTS = tuple(tuple(range(start, start + 70)) for start in (700, 900, 1100))
HERE, THERE = (7, 3, 11, 0, 5), (2, 9, 5, 8, 1)  # blocks of a prompt: of the prefill pool, of the decode pool
CUT = 2  # a layer's first message has so many blocks
LOST = {(1, 7, CUT): 1, (2, 3, 0): 9}  # (prompt, layer, first block) of a message: how many times it is lost
NUM_NEW = 12
SILENT_S = 300
HEADER = 4  # kind, layer, first block, number of blocks; or kind and the first token
BLOCKS, SENT = 0, 1
ORDERS = ("adopt", "resend", "recompute")


@dataclass(frozen=True)
class Handed:
    """What one engine generates alone, and what two processes generated; `orders` is what Transfer said, by prompt."""

    alone: list[list[int]]
    apart: list[list[int]] | None
    orders: Sequence[Sequence[Any]] = ()
    num_messages: int = 0
    num_bytes: int = 0
    why_not: str = ""


@cache
def alone() -> list[list[int]]:
    """One engine that does both."""
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    return [list(each.outputs[0].token_ids) for each in engine().generate(prompts, params, use_tqdm=False)]


def in_two_processes(take_layer: Callable[..., Any], put_layer: Callable[..., Any], transfer: type) -> Handed:
    """Give the cells that define these to two ranks, and wait for what rank 0 says."""
    if why_not():
        return Handed(alone(), None, why_not=why_not())
    with tempfile.TemporaryDirectory(prefix="twophase_own_") as name:
        path = Path(name) / "own_parts.py"
        write_module(path, (take_layer, put_layer, transfer))
        said = said_by_rank_0("twophase_labs.many_machines.own_ranks", str(path))
    return Handed(alone(), **said)


# -- in the ranks


def _own_parts(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("own_parts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_parts"] = module
    spec.loader.exec_module(module)
    return module


def _header(*values: int) -> Tensor:
    return torch.tensor([*values, *[0] * (HEADER - len(values))])


@torch.no_grad()
def prefill_rank(parts: Any) -> None:
    """Compute each prompt, send it, and send again what the other side asks for."""
    llm = engine()
    pool, lost = make_pool(llm), dict(LOST)
    for number, prompt in enumerate(PROMPTS):
        first_token = int(run_tokens(llm, prompt, 0, HERE, pool).argmax())
        start = 0
        while True:
            for layer, kv in enumerate(pool.layers):
                for begin, end in ((start, CUT), (max(start, CUT), len(HERE))):
                    if begin >= end:
                        continue
                    if lost.get((number, layer, begin), 0):
                        lost[number, layer, begin] -= 1
                        continue
                    num_tokens = min(len(prompt), end * BLOCK_SIZE) - begin * BLOCK_SIZE
                    dist.send(_header(BLOCKS, layer, begin, end - begin), 0)
                    for part in parts.take_layer(kv, list(HERE[begin:end]), num_tokens):
                        dist.send(part.contiguous(), 0)
            dist.send(_header(SENT, first_token), 0)
            order = torch.empty(2, dtype=torch.int64)
            dist.recv(order, 0)
            if ORDERS[int(order[0])] != "resend":
                break
            start = int(order[1])


@torch.no_grad()
def decode_rank(parts: Any) -> dict[str, Any]:
    """Receive each prompt, do what the learner's `Transfer` says, and decode."""
    llm = engine()
    pool, orders, apart = make_pool(llm), [], []
    heads, dim = llm.model_config.num_kv_heads, llm.model_config.head_dim
    num_messages = num_bytes = 0
    for prompt in PROMPTS:
        transfer, told = parts.Transfer(len(pool.layers), len(THERE)), []
        while True:
            header = torch.empty(HEADER, dtype=torch.int64)
            dist.recv(header, 1)
            kind, layer, begin, count = header.tolist()
            if kind == BLOCKS:
                num_tokens = min(len(prompt), (begin + count) * BLOCK_SIZE) - begin * BLOCK_SIZE
                message = [torch.empty(num_tokens, heads, dim) for _ in range(2)]
                for part in message:
                    dist.recv(part, 1)
                    num_bytes += part.numel() * part.element_size()
                num_messages += 1
                if transfer.receive(layer, begin, count):
                    parts.put_layer(pool.layers[layer], list(THERE[begin : begin + count]), message)
                continue
            said = transfer.on_sent()
            name, block = said if isinstance(said, tuple | list) else (said, 0)
            told.append(name if name != "resend" else f"resend from block {block}")
            dist.send(torch.tensor([ORDERS.index(name), block]), 1)
            if name != "resend":
                break
        token = layer if name == "adopt" else int(run_tokens(llm, prompt, 0, THERE, pool).argmax())
        tokens = [token]
        while len(tokens) < NUM_NEW:
            position = len(prompt) + len(tokens) - 1
            tokens.append(int(run_tokens(llm, tokens[-1:], position, THERE, pool).argmax()))
        orders.append(told)
        apart.append(tokens)
    return {"apart": apart, "orders": orders, "num_messages": num_messages, "num_bytes": num_bytes}


def main(path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=SILENT_S))
    try:
        parts = _own_parts(path)
        if os.environ["RANK"] == "1":
            prefill_rank(parts)
        else:
            print(json.dumps(decode_rank(parts)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
