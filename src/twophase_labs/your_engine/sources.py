"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, latest, 2026: https://docs.vllm.ai/en/latest/design/prefix_caching/
""")
