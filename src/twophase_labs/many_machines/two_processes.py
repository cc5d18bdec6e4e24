"""Two processes from a notebook: what rank 0 printed last, as JSON; or why there cannot be two here."""

import json
from typing import Any

import torch.distributed as dist

TIMEOUT_S = 400  # a busy machine takes long to import torch three times


def why_not() -> str:
    """Empty where processes can talk to each other. Anything else that goes wrong is an error, and is raised."""
    if dist.is_available() and dist.is_gloo_available():
        return ""
    return "this build of PyTorch has no torch.distributed with gloo"


def said_by_rank_0(module: str, *args: str) -> dict[str, Any]:
    """Run a module as two ranks with a thread each; raises LaunchError, which shows what they said, if one fails."""
    from twophase_tools.launch import run_local

    ranks = run_local(module, 2, args, timeout_s=TIMEOUT_S, threads_per_rank=1)
    found: dict[str, Any] = json.loads(ranks[0].stdout.splitlines()[-1])
    return found


def send(message: Any, rank: int) -> None:
    """To the other rank, which waits for it in `receive`."""
    dist.send_object_list([message], rank)


def receive(rank: int) -> Any:
    message = [None]
    dist.recv_object_list(message, rank)
    return message[0]
