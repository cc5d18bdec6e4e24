"""Where the time of an engine's step goes: `twophase profile`.

    ranges      which parts of the engine are ranges of the profile
    steps       the steps to look at: an engine brought to just before a step of a kind, and torch's profiler around it
    report      a table of it

The engine knows nothing of this: its parts are wrapped from outside, and only while somebody looks.
"""
