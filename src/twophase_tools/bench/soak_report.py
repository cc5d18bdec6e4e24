"""What a soak found: a table of promises, held or broken."""

from dataclasses import asdict, dataclass
from typing import Any

from twophase_tools.bench.machine import MachineRecord

GROWTH_LIMIT = 0.05  # of resident memory, from one rest to the next


@dataclass(frozen=True, slots=True)
class Promise:
    """What a server has to keep.

    Attributes:
        is_held: None: it could not be looked at.
        figures: What was found.
    """

    words: str
    is_held: bool | None
    figures: str

    @property
    def verdict(self) -> str:
        return {True: "held", False: "BROKEN", None: "not run"}[self.is_held]


@dataclass(frozen=True, slots=True)
class SoakReport:
    """A soak.

    Attributes:
        outcomes: (kind of client, what became of its request, how often).
        breaches: The first requests that a promise was broken to, in words.
    """

    num_clients: int
    duration_s: float
    seed: int
    num_requests: int
    outcomes: tuple[tuple[str, str, int], ...]
    breaches: tuple[str, ...]
    promises: tuple[Promise, ...]
    machine: MachineRecord

    @property
    def passed(self) -> bool:
        return all(promise.is_held is not False for promise in self.promises)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}

    def to_text(self) -> str:
        lines = [
            f"{self.num_clients} clients for {self.duration_s:g} s, seed {self.seed}: {self.num_requests:,} requests "
            f"to a tiny random model",
            "",
        ]
        lines += [f"{each.verdict:<8}{each.words:<44}{each.figures}" for each in self.promises]
        lines += ["", f"{'client':<14}{'requests':>10}  what became of them"]
        lines += [f"{kind:<14}{count:>10,}  {what}" for kind, what, count in self.outcomes]
        if self.breaches:
            lines += ["", "the first breaches:", *(f"  {breach}" for breach in self.breaches)]
        broken = sum(promise.is_held is False for promise in self.promises)
        lines += ["", "every promise is held" if self.passed else f"{broken} promises are BROKEN"]
        return "\n".join([*lines, self.machine.to_text()])
