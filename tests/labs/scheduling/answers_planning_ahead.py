"""Answers that prove the check of exercise 4.9."""

from twophase_labs.machine.bank import right, wrong

LENGTH, STOP, BUSY = "serves a stream to its length", "ends at the stop token", "keeps the device busy"
GUIDED, BLOCKS = "launches a guided stream when its tokens are known", "gives blocks back in time, and once"
NONE_LEFT_OUT = "leaves no stream out of a step"

WITH_A_COUNTER = """
from collections import Counter

def serve_ahead(device, streams):
    coming, steps, done = Counter(), [], set()
    while len(done) < len(streams):
        ready = [
            s.name
            for s in streams
            if not s.has_ended and len(s.tokens) + coming[s.name] < s.max_tokens and not (s.is_guided and coming[s.name])
        ]
        if ready:
            device.launch(ready)
            coming.update(ready)
            steps.append(ready)
        if len(steps) > 1 or not ready:
            coming.subtract(steps.pop(0))
            for name, token in device.wait().items():
                stream = next(s for s in streams if s.name == name)
                if not stream.has_ended:
                    stream.tokens.append(token)
            for s in streams:
                if s.has_ended and coming[s.name] == 0 and s.name not in done:
                    device.free(s.name)
                    done.add(s.name)
"""
WITH_THE_STEP_BEFORE = """
def serve_ahead(device, streams):
    before = set()
    left = {stream.name: stream for stream in streams}
    while left or before:
        now = {
            name
            for name, s in left.items()
            if not s.has_ended
            and len(s.tokens) + (name in before) < s.max_tokens
            and not (s.is_guided and name in before)
        }
        if now:
            device.launch(sorted(now))
        if before:
            for name, token in device.wait().items():
                if not left[name].has_ended:
                    left[name].tokens.append(token)
                if left[name].has_ended and name not in now:
                    device.free(name)
                    del left[name]
        before = now
"""

# fmt: off
BANKS = {
    "4.9": (
        wrong("tokens in flight do not count", "len(stream.tokens) + num_coming", "len(stream.tokens)", by=LENGTH),
        wrong("waits after each launch", "len(in_flight) == 2", "in_flight", by=BUSY),
        wrong("guided as the others", " and not (stream.is_guided and num_coming)", "", by=GUIDED),
        wrong("blocks of a step in flight", " and not any(stream.name in step for step in in_flight)", "", by=STOP),
        wrong("never gives blocks back", "device.free(stream.name)", "pass", by=BLOCKS),
        wrong("guided when nothing is in flight", "stream.is_guided and num_coming", "stream.is_guided and in_flight",
              by=NONE_LEFT_OUT),
        right("with a counter", WITH_A_COUNTER),
        right("with the step before", WITH_THE_STEP_BEFORE),
    ),
}
