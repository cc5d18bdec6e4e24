"""The engine on one process and on two, side by side. Two are started as torchrun does, and none is left behind."""

from dataclasses import dataclass
from functools import cache

from twophase_labs.many_machines.one_process import engine
from twophase_labs.many_machines.shards_generation import Generation, generation
from twophase_labs.many_machines.two_processes import said_by_rank_0, why_not


@dataclass(frozen=True)
class SideBySide:
    """`two` is None where two processes could not be run here, and `why_not` says why."""

    one: Generation
    two: Generation | None
    why_not: str = ""

    @property
    def table(self) -> str:
        """Times, shares and bytes of both."""
        if self.two is None:
            return f"not run here: {self.why_not}"
        one, two = self.one, self.two
        num_steps = len(two.token_ids)
        rows = (
            ("ms of a decode step", f"{1e3 * one.decode_s:.1f}", f"{1e3 * two.decode_s:.1f}"),
            ("ms to prefill 256 tokens", f"{1e3 * one.prefill_s:.0f}", f"{1e3 * two.prefill_s:.0f}"),
            ("... of a step in all-reduces, ms", "-", f"{1e3 * two.all_reduce_s / num_steps:.1f}"),
            ("K/V bytes per token on rank 0", f"{one.kv_bytes_per_token:,}", f"{two.kv_bytes_per_token:,}"),
        )
        lines = [f"{'':34}{'one process':>14}{'two':>14}"]
        return "\n".join(lines + [f"{name:34}{left:>14}{right:>14}" for name, left, right in rows])


@cache
def side_by_side() -> SideBySide:
    """The same generation on one process, here, and on two."""
    one = generation(engine())
    if why_not():
        return SideBySide(one, None, why_not())
    said = said_by_rank_0("twophase_labs.many_machines.shards_generation")
    two = Generation(**said | {name: tuple(said[name]) for name in ("token_ids", "logprobs")})
    return SideBySide(one, two)
