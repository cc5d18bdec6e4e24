"""Where the time of an engine's step goes: `twophase profile`.

    ranges      which parts of the engine are ranges of the profile
    steps       the steps to look at: an engine brought to just before a step of a kind
    record      torch's profiler around them
    tree        the trace read back: ranges and operators, one inside the other
    report      a table of it

The engine knows nothing of this: its parts are wrapped from outside, and only while somebody looks.
"""
