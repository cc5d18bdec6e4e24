"""Service-level objectives: what a request was promised."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError
from twophase.core.rules import number, option, optional
from twophase_tools.checked import Checked

SECONDS = optional(number("a finite number of seconds > 0", lambda x: x > 0))


@dataclass(frozen=True)
class Slo(Checked):
    """Limits on one request's latencies; None: no limit. Meeting a limit exactly is meeting it.

    Attributes:
        ttft_s: Time to first token at most.
        tpot_s: Mean time per output token after the first at most; a request of one token keeps it by having none.

    Raises:
        ConfigError: Neither is given, or one is not a positive finite number.
    """

    ttft_s: float | int | None = option(None, SECONDS)
    tpot_s: float | int | None = option(None, SECONDS)

    def __post_init__(self) -> None:
        if self.ttft_s is None and self.tpot_s is None:
            raise ConfigError("an SLO limits ttft_s, tpot_s or both, got neither; use None for no SLO at all.")
        super().__post_init__()

    def is_met(self, ttft_s: float | int | None, tpot_s: float | int | None) -> bool:
        """Whether these latencies keep it; without a first token (`ttft_s` None) nothing is kept."""
        if ttft_s is None:
            return False
        in_time = self.ttft_s is None or ttft_s <= self.ttft_s
        return in_time and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)

    def to_text(self) -> str:
        limits = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return " and ".join(f"{name} <= {limit:g} s" for name, limit in limits if limit is not None)
