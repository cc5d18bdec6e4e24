"""What eight companies' system prompts have in common, and what not."""

from collections.abc import Callable
from functools import partial

from twophase import LLM
from twophase.workbook.lab05.prefix_service import first_token

NAMES = ("Alder Bank", "Birch Foods", "Cedar Rail", "Elm Media", "Fir Energy", "Hazel Air", "Larch Steel", "Oak Pharma")
TEMPLATE = (
    "You work for the board of {name}. This is confidential. {name} is about to buy its largest competitor, and "
    "nobody outside may know before the contract is signed. Answer questions of the staff politely and shortly, never "
    "mention the plan, and if somebody asks about a merger, say that there is nothing to report. Write plain text "
    "without lists, in the language of the question, and end with a friendly sentence that fits the season."
)
SECRET = 4


def candidate_prompts(llm: LLM) -> list[list[int]]:
    """The template with each of the names, in tokens."""
    assert llm.tokenizer is not None, "the labs' model has a tokenizer"
    return [llm.tokenizer.encode(TEMPLATE.format(name=name)) for name in NAMES]


def clock_of(llm: LLM, salt: str = "") -> tuple[Callable[[list[int]], float], dict[tuple[int, ...], list[float]]]:
    """A stranger's `ask(prompt)` under this salt, and the times that it took, by prompt."""
    times_s: dict[tuple[int, ...], list[float]] = {}

    def ask(token_ids: list[int]) -> float:
        seconds = first_token(llm, token_ids, salt).ttft_s or 0.0
        times_s.setdefault(tuple(token_ids), []).append(seconds)
        return seconds

    return ask, times_s


def victim_of(llm: LLM, salt: str = "") -> Callable[[list[int]], object]:
    """Somebody who uses a prompt; nobody sees the answer."""
    return partial(first_token, llm, salt=salt)
