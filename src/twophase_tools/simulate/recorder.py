"""What is kept of a simulation: what an engine would report."""

from dataclasses import dataclass, field
from typing import final

from twophase.core.plan import StepTrace
from twophase_tools.load.records import RequestRecord


@final
@dataclass(slots=True)
class Recorder:
    """Notes of one engine; only its replica writes them.

    Attributes:
        keeps_steps: Whether each step's trace is kept, too.
        records: What became of each request, in the order of their ends.
    """

    keeps_steps: bool = True
    records: list[RequestRecord] = field(default_factory=list)
    steps: list[StepTrace] = field(default_factory=list)
