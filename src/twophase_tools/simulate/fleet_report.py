"""What a fleet did: engine by engine, and in total."""

from dataclasses import dataclass, field
from typing import Any, final

from twophase_tools.load.slo import Slo
from twophase_tools.simulate.fleet import Fleet
from twophase_tools.simulate.observers import Tally


@final
@dataclass(slots=True)
class Tallies:
    """Makes a tally for each engine of a fleet, and adds them up.

    Attributes:
        each: In the order in which they were made.
    """

    slo: Slo | None = None
    each: list[Tally] = field(default_factory=list)

    def new(self) -> Tally:
        """For one more engine."""
        self.each.append(Tally(self.slo))
        return self.each[-1]

    @property
    def total(self) -> Tally:
        total = Tally(self.slo)
        for tally in self.each:
            total.merge(tally)
        return total

    @property
    def balance(self) -> float | None:
        """Tokens of the engine with the most, prompts and outputs, over the mean; 1: all have as many. None before any
        request has ended."""
        counts = [tally.num_prompt_tokens + tally.num_output_tokens for tally in self.each]
        return max(counts) * len(counts) / sum(counts) if counts and sum(counts) else None


@final
@dataclass(frozen=True, slots=True)
class FleetReport:
    """A fleet after its run.

    Attributes:
        tallies: What its engines' observers noted, in the order of `fleet.lives`.
        end_s: When the last request of the whole run had ended.
    """

    name: str
    fleet: Fleet
    tallies: Tallies
    end_s: float | int

    @property
    def engine_s(self) -> float:
        return self.fleet.engine_s(self.end_s)

    def to_text(self) -> str:
        """A line for each engine, and what they have in common."""
        lines = [
            f"{self.name:<12}{'requests':>10}{'tokens':>12}{'hit rate':>10}{'TTFT p50':>10}{'p99':>10}{'ITL p50':>10}"
            f"{'p99':>10}{'goodput':>10}{'busy':>8}"
        ]
        for number, (life, tally) in enumerate(zip(self.fleet.lives, self.tallies.each, strict=True)):
            end_s = self.end_s if life.end_s is None else life.end_s
            busy = life.replica.busy_s(end_s) / (end_s - life.start_s) if end_s > life.start_s else 0.0
            lines.append(self._row(f"engine {number}", tally, busy))
        balance = self.tallies.balance
        lines.append(
            f"{len(self.fleet.lives)} engines, {self.engine_s:,.0f} engine-seconds"
            + ("" if balance is None else f"; the fullest had {balance:.2f} times the mean number of tokens")
        )
        return "\n".join(lines)

    @staticmethod
    def _row(name: str, tally: Tally, busy: float) -> str:
        times = [histogram.percentile(percent) for histogram in (tally.ttft, tally.itl) for percent in (50, 99)]
        shown = "".join(f"{'-' if time is None else f'{time:.4g}':>10}" for time in times)
        kept = "-" if tally.slo is None or not tally.num_requests else f"{tally.num_kept / tally.num_requests:.1%}"
        num_tokens = tally.num_prompt_tokens + tally.num_output_tokens
        return (
            f"{name:<12}{tally.num_requests:>10,}{num_tokens:>12,}{tally.hit_rate:>10.1%}{shown}{kept:>10}{busy:>8.0%}"
        )

    def to_dict(self) -> dict[str, Any]:
        engines = [
            {"start_s": life.start_s, "ready_s": life.ready_s, "end_s": life.end_s} | tally.to_dict()
            for life, tally in zip(self.fleet.lives, self.tallies.each, strict=True)
        ]
        return {
            "name": self.name,
            "engines": engines,
            "engine_s": self.engine_s,
            "balance": self.tallies.balance,
        }
