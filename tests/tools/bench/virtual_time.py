"""An event loop whose clock jumps to the next thing that is due: sleeps take no time, and come in order."""

import asyncio
import selectors


class VirtualLoop(asyncio.SelectorEventLoop):
    """For what does no input and output. `time` starts at 1000 s."""

    def __init__(self):
        super().__init__(_Selector(self))
        self.now_s = 1000.0

    def time(self):
        return self.now_s


class _Selector(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        assert timeout is not None, "everybody waits for something that never comes"
        self._loop.now_s += timeout
        return super().select(0)


def in_virtual_time(make):
    """Run `await make(loop)`; its result."""

    async def main():
        return await make(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
