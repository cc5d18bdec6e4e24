"""Planning ahead of a device that is simulated: streams of tokens, a clock for host and device, and its picture."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done
from twophase_tools.colours import DECODE, EMPTY, INK, LINE

STOP, AFTER_THE_END = 0, -1
AT_MOST_IN_FLIGHT, TOO_MANY_STEPS = 2, 1_000


@dataclass
class Stream:
    """A sequence that decodes, as the host knows it."""

    name: str
    max_tokens: int
    is_guided: bool = False
    tokens: list[int] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return len(self.tokens) >= self.max_tokens or self.tokens[-1:] == [STOP]


class DeviceError(Exception):
    """What no device could run, or what would corrupt another sequence's blocks."""


class Step(NamedTuple):
    """Times in milliseconds: when its planning began, when the device began and ended it."""

    names: tuple[str, ...]
    planned_ms: float
    start_ms: float
    end_ms: float


class Device:
    """A device that computes the tokens of `scripts`, in order, one for each name of a step.

    The host's clock moves by `plan_ms` for each launch, and to a step's end when it is waited for.

    Attributes:
        freed: How many steps had been launched when a stream's blocks were given back, by its name.
        num_dropped: Tokens computed behind a script's stop token.
        idle_ms, num_bubbles: Time between two steps, and how often there was some.
    """

    def __init__(
        self, scripts: Mapping[str, Sequence[int]], guided: Sequence[str] = (), plan_ms: float = 1, run_ms: float = 4.5
    ) -> None:
        self.plan_ms, self.run_ms = plan_ms, run_ms
        self.steps: list[Step] = []
        self.freed: dict[str, int] = {}
        self._scripts, self._guided, self._host_ms = scripts, frozenset(guided), 0.0
        self._in_flight: deque[Step] = deque()
        self._num_computed: Counter[str] = Counter()

    def launch(self, names: Sequence[str]) -> None:
        """Start a step with a token for each name; a token in flight is known to the device alone.

        Raises:
            DeviceError: Two steps are in flight, a name is there twice or was freed, a mask needs a token that is
                missing, or there is no end.
        """
        if len(self._in_flight) == AT_MOST_IN_FLIGHT:
            raise DeviceError("a third step is launched, and none of the two before it was waited for")
        if not names or len(set(names)) < len(names):
            raise DeviceError(f"a step has each of its streams once, and at least one; got {list(names)}")
        if len(self.steps) == TOO_MANY_STEPS:
            raise DeviceError(f"{TOO_MANY_STEPS:,} steps were launched, far more than the streams have tokens")
        for name in names:
            if name in self.freed:
                raise DeviceError(f"{name} is launched after its blocks were given back")
            if name in self._guided and self._is_in_flight(name):
                raise DeviceError(f"{name} is guided, and its mask needs a token that is still in flight")
        planned_ms, self._host_ms = self._host_ms, self._host_ms + self.plan_ms
        start_ms = max(self._host_ms, self.end_ms)
        self.steps.append(Step(tuple(names), planned_ms, start_ms, start_ms + self.run_ms))
        self._in_flight.append(self.steps[-1])

    def wait(self) -> dict[str, int]:
        """The tokens of the oldest step in flight, by name."""
        if not self._in_flight:
            raise DeviceError("a step is waited for, and none was launched")
        step = self._in_flight.popleft()
        self._host_ms = max(self._host_ms, step.end_ms)
        tokens = {}
        for name in step.names:
            script, at = self._scripts[name], self._num_computed[name]
            is_over = STOP in script[:at] or at >= len(script)
            tokens[name] = AFTER_THE_END if is_over else script[at]
            self._num_computed[name] += 1
        return tokens

    def free(self, name: str) -> None:
        """Give the blocks of a stream back.

        Raises:
            DeviceError: It was done before, or a step in flight still writes to them.
        """
        if name in self.freed:
            raise DeviceError(f"the blocks of {name} are given back twice")
        if self._is_in_flight(name):
            raise DeviceError(f"the blocks of {name} are given back while a step in flight still writes to them")
        self.freed[name] = len(self.steps)

    def _is_in_flight(self, name: str) -> bool:
        return any(name in step.names for step in self._in_flight)

    @property
    def end_ms(self) -> float:
        return self.steps[-1].end_ms if self.steps else 0.0

    @property
    def num_computed(self) -> int:
        return sum(self._num_computed.values())

    @property
    def num_dropped(self) -> int:
        ends = {name: list(script).index(STOP) + 1 for name, script in self._scripts.items() if STOP in script}
        return sum(max(0, self._num_computed[name] - end) for name, end in ends.items())

    @property
    def _gaps_ms(self) -> list[float]:
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [later.start_ms - step.end_ms for step, later in pairs if later.start_ms > step.end_ms]

    @property
    def idle_ms(self) -> float:
        return sum(self._gaps_ms)

    @property
    def num_bubbles(self) -> int:
        return len(self._gaps_ms)


def serve_step_by_step(device: Device, streams: Sequence[Stream]) -> None:
    """Plan, run, read, and only then plan again."""
    while left := [stream for stream in streams if not stream.has_ended]:
        device.launch([stream.name for stream in left])
        tokens = device.wait()
        for stream in left:
            stream.tokens.append(tokens[stream.name])
            if stream.has_ended:
                device.free(stream.name)


def six_answers() -> tuple[Device, list[Stream]]:
    """Three end by a stop token, three by their length; the last is guided."""
    lengths, stopped = {"A": 6, "B": 9, "C": 12, "D": 12, "E": 14, "F": 8}, "ABC"
    scripts = {name: [*range(1, length), STOP if name in stopped else length] for name, length in lengths.items()}
    streams = [Stream(name, 16 if name in stopped else length, name == "F") for name, length in lengths.items()]
    return Device(scripts, guided="F"), streams


def draw_timeline(devices: Mapping[str, Device], num_steps: int) -> Figure:
    """A panel per way, with a row for the host's planning and one for the device's steps; gaps are bubbles."""
    figure, panels = plt.subplots(len(devices), 1, figsize=(10, 1.5 * len(devices)), sharex=True, squeeze=False,
                                facecolor="white")  # fmt: skip
    for axes, (name, device) in zip(panels[:, 0], devices.items(), strict=True):
        shown = device.steps[:num_steps]
        axes.barh(1, shown[-1].end_ms - shown[0].start_ms, 0.7, left=shown[0].start_ms, color=EMPTY, edgecolor=LINE)
        for number, step in enumerate(shown):
            axes.barh(0, device.plan_ms, 0.7, left=step.planned_ms, color="white", edgecolor=INK)
            axes.barh(1, device.run_ms, 0.7, left=step.start_ms, color=DECODE, edgecolor="white")
            for row, left, width in ((0, step.planned_ms, device.plan_ms), (1, step.start_ms, device.run_ms)):
                axes.text(left + width / 2, row, str(number), ha="center", va="center", fontsize=8, color=INK)
        axes.set(yticks=(0, 1), ylim=(1.6, -0.6))
        axes.set_yticklabels(("host plans", "device computes"))
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("milliseconds (numbers: steps; grey: the device is idle)")
    return done(figure)
