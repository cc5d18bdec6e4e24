"""A server that breaks its promises: `python -m tests.tools.bench.faulty_server ARGUMENTS`, with FAULT in its environment."""

import contextlib
import itertools
import os
import sys
import threading

from twophase.cache.manager import CacheManager
from twophase_server import answering, errors
from twophase_server.run import DrainingServer
from twophase_tools.bench import soak_server


def leak_blocks() -> None:
    """One request in twenty keeps its blocks for ever."""
    close, numbers = CacheManager.close, itertools.count(1)

    def leaky_close(self, table):
        if next(numbers) % 20:
            close(self, table)

    CacheManager.close = leaky_close


def refuse_silently() -> None:
    errors.ApiError.to_dict = lambda self: {}


def drop_what_was_accepted() -> None:
    """After SIGTERM streams end before their end, and after ten of them the server.

    So somebody has something to lose, whatever runs when the signal comes. (Left at once, it may have sent all that was
    asked for; and those who vanish anyway, one in six, lose nothing.)
    """
    events, is_leaving, numbers = answering._events, threading.Event(), itertools.count(1)
    stop = DrainingServer.handle_exit

    async def half_of_the_events(*arguments):
        async with contextlib.aclosing(events(*arguments)) as whole:
            async for piece in whole:
                if is_leaving.is_set():
                    if next(numbers) == 10:
                        os._exit(0)
                    return
                yield piece

    def leave(self, sig, frame):
        if self.service.llm.is_alive:
            is_leaving.set()
        else:  # nothing comes any more
            stop(self, sig, frame)

    answering._events = half_of_the_events
    DrainingServer.handle_exit = leave


FAULTS = {"leak": leak_blocks, "silence": refuse_silently, "drop": drop_what_was_accepted}

if __name__ == "__main__":
    FAULTS[os.environ["FAULT"]]()
    soak_server.break_on_signal()
    sys.exit(soak_server.main(["serve", *sys.argv[1:]]))
