"""Attention that breaks on command, around a real backend."""

import sys
from collections.abc import Callable
from typing import Any

from twophase.attention.interface import AttentionBackend, AttentionBatch
from twophase.engine.engine import Engine


class Broken(RuntimeError):
    """The planted fault."""


class FaultyBackend(AttentionBackend):
    """Delegates to `real`; raises `Broken` in `stage` for batches of which `is_culprit` says so.

    Stages: 'plan'; 'write' and 'attend' in layer 1, when layer 0 has its pages written already; 'write late', after
    layer 1's pages are written.
    """

    name = "torch"

    def __init__(self, real: AttentionBackend, stage: str, is_culprit: Callable[[AttentionBatch], bool]) -> None:
        self.real = real
        self.stage = stage
        self.is_culprit = is_culprit
        self.num_raised = 0

    def plan(self, batch: AttentionBatch) -> Any:
        plan = {"real": self.real.plan(batch), "batch": batch, "num_writes": 0}
        self._maybe_raise("plan", plan, at_layer=0)
        return plan

    def write(self, q, k, v, cos, sin, kv, plan):
        self._maybe_raise("write", plan, at_layer=1)
        rotated = self.real.write(q, k, v, cos, sin, kv, plan["real"])
        self._maybe_raise("write late", plan, at_layer=1)
        plan["num_writes"] += 1
        return rotated

    def attend(self, q, kv, plan):
        self._maybe_raise("attend", plan, at_layer=2)
        return self.real.attend(q, kv, plan["real"])

    def _maybe_raise(self, stage: str, plan: dict[str, Any], at_layer: int) -> None:
        if stage == self.stage and plan["num_writes"] == at_layer and self.is_culprit(plan["batch"]):
            self.num_raised += 1
            raise Broken(f"planted in {stage}")


class Suspect:
    """Recognises a request in a batch by its first block; it counts while its length is in [first, last]."""

    def __init__(self, request_id: str, first: int = 0, last: int = sys.maxsize) -> None:
        self.request_id, self.first, self.last = request_id, first, last
        self.engine: Engine | None = None

    def __call__(self, batch: AttentionBatch) -> bool:
        sequences = self.engine._scheduler.sequences.values()
        tables = [s.table for s in sequences if s.request.request_id == self.request_id and s.table is not None]
        first_blocks = {table.block_ids[0] for table in tables}
        rows = zip(batch.block_tables[:, 0].tolist(), batch.seq_lens_host, strict=True)
        return any(block in first_blocks and self.first <= length <= self.last for block, length in rows)
