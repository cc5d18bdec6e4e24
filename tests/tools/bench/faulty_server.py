"""A server that breaks its promises: `python -m tests.tools.bench.faulty_server ARGUMENTS`, with FAULT in its environment."""

import itertools
import os
import sys

from twophase.cache.manager import CacheManager
from twophase_server import errors
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
    def leave(self, sig, frame):
        os._exit(0)

    DrainingServer.handle_exit = leave


FAULTS = {"leak": leak_blocks, "silence": refuse_silently, "drop": drop_what_was_accepted}

if __name__ == "__main__":
    FAULTS[os.environ["FAULT"]]()
    soak_server.break_on_signal()
    sys.exit(soak_server.main(["serve", *sys.argv[1:]]))
