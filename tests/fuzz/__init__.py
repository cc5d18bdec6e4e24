"""Random input for every entry point of the package. One rule judges all of it:

a bad request gets a clear error and changes nothing; a good one is served (and gets the tokens it gets alone: the feature
grid, tests/engine/feature_runs.py, compares these).

    python -m tests.fuzz.requests 10000 0   requests, against LLM and Engine
    python -m tests.fuzz.folders            all of a table of model folders, against transformers

A sample of each runs in every test run (test_fuzz.py), more with `--full`. A finding names its seed: the same command
with `1 N` repeats it alone.
"""
