"""Your hand-over and recovery in the engine that decodes, behind the door `KVTier`."""

from collections.abc import Callable, Sequence
from typing import Any, final

from twophase_features.offloading.tier import KVTier
from twophase_labs.many_machines.two_processes import receive, send


@final
class BlocksOfRank1(KVTier):
    """The blocks that rank 1 computes, behind the door `KVTier`; what it does not get is computed here."""

    def __init__(self, put_layer: Callable[..., None], transfer: Callable[..., Any]) -> None:
        self.put_layer, self.transfer = put_layer, transfer
        self.orders: list[list[str]] = []
        self.num_messages = self.num_bytes = 0

    def attach(self, runner: Any) -> None:
        self.layers = runner.kv_cache.layers

    def match(self, keys: Sequence[Any]) -> int:
        return len(keys)

    def store(self, keys: Sequence[Any], block_ids: Sequence[int]) -> int:
        return 0

    def load(self, keys: Sequence[Any], block_ids: Sequence[int]) -> int:
        """Receive a prompt, and do what the learner's `Transfer` says."""
        transfer, order = self.transfer(len(self.layers), len(keys)), "resend"
        self.orders.append([])
        while order == "resend":
            while message := receive(1):
                layer, begin, count, parts = message
                self.num_messages += 1
                self.num_bytes += sum(part.nbytes for part in parts)
                if transfer.receive(layer, begin, count):
                    self.put_layer(self.layers[layer], list(block_ids[begin : begin + count]), parts)
            said = transfer.on_sent()
            order, start = said if isinstance(said, tuple | list) else (said, 0)
            self.orders[-1].append(order if order != "resend" else f"resend from block {start}")
            send((order, start), 1)
        return len(keys) if order == "adopt" else 0
