"""The names of the first edition, whose notebooks are still graded: one package then held what are three now."""

import re

CHAPTERS = {
    "lab01": "autoregression", "lab02": "prefill", "lab03": "decode", "lab04": "scheduling", "lab05": "advanced",
}  # fmt: skip
TOOLS = {"bench": "bench", "serving": "load", "simulate": "simulate", "capacity": "capacity", "cli": "cli"}
OLD = re.compile(r"\btwophase\.(?:workbook(?:\.(\w+))?|(bench|serving|simulate|capacity|cli)|(distributed))\b")


RENAMED = {
    "from twophase.engine.thrift import Thrift": (
        "from twophase.engine.speculation_gate import SpeculationGate as Thrift"
    ),
    ".num_free_seats": ".num_free_places",
}


def with_names_of_today(source: str) -> str:
    """A cell with the modules of the first edition called what they are called now; all else stays as it is."""
    for before, today in RENAMED.items():
        source = source.replace(before, today)
    return OLD.sub(_today, source) if "twophase." in source else source


def _today(found: re.Match[str]) -> str:
    part, tool, parallel = found.groups()
    if tool:
        return f"twophase_tools.{TOOLS[tool]}"
    if parallel:
        return "twophase.parallel"
    if part is None:
        return "twophase_labs"
    if part == "kit" or part in CHAPTERS:
        return f"twophase_labs.{CHAPTERS.get(part, part)}"
    return f"twophase_labs.machine.{part}"
