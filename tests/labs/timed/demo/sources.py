"""Where the lab's facts from elsewhere were read."""

from twophase_labs.machine.sources import Source

SOURCES = (Source(url="https://a.b/c", product="vLLM", version="0.11", says="what the box says"),)
