"""The server of `twophase bench soak`, in a process of its own: `twophase serve`, whose engine breaks on request.

After a SIGUSR1 the engine's next step raises. That is how the soak finds out what clients are told then; a server that
was started in any other way has no such hook.
"""

import signal
import sys
from types import FrameType

from twophase.core.request import RequestOutput
from twophase.engine.engine import Engine
from twophase_tools.cli.main import main


class PlantedError(RuntimeError):
    """The fault that was asked for."""


def break_on_signal() -> None:
    """From the next SIGUSR1 on, every step of every engine in this process raises."""
    whole_step = Engine.step
    is_broken = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal is_broken
        is_broken = True

    def step(self: Engine) -> list[RequestOutput]:
        if is_broken:
            raise PlantedError("a fault planted by twophase bench soak")
        return whole_step(self)

    signal.signal(signal.SIGUSR1, note)
    Engine.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    break_on_signal()
    sys.exit(main(["serve", *sys.argv[1:]]))
