"""Requests whose first token is late for different reasons; and a mixed load of three tenants."""

import statistics
from collections.abc import Callable, Sequence

from twophase_labs.operations.clients import Ask, Reader
from twophase_labs.operations.one_llm import MAX_NUM_SEQS, llm
from twophase_labs.operations.own_bucket import settings_with
from twophase_labs.operations.scrapes import Scrape, scrape
from twophase_labs.operations.six_terms import Timed, stamped

WORDS = "The engine computes keys and values of every token, and keeps them in blocks. "
CATALOGUE = 9_900


def catalogue(first: str) -> list[str]:
    """Names of products, none of which another catalogue has."""
    return [f"{first}-{number:05d}" for number in range(CATALOGUE)]


def long_prompt(about: str, num_sentences: int = 15) -> str:
    return f"About {about}. " + WORDS * num_sentences


def five_reasons(make_reader: Callable[[], Reader] | None = None) -> list[Timed]:
    """One after the other, on an engine that is idle but for the last of them."""
    guided = {"structured_outputs": {"choice": catalogue("part")}}
    alone = (
        Ask("The capital of France is", 1, "short"),
        Ask(long_prompt("blocks"), 1, "long"),
        Ask(long_prompt("blocks"), 1, "the same again"),
        Ask("The best product is", 1, "9,900 choices", fields=guided),
    )
    fill = [Ask(f"Count to {number}:", 12, f"busy {number}") for number in range(MAX_NUM_SEQS)]
    last = Ask("The capital of Italy is", 1, "behind eight", at_s=0.3)
    with stamped(llm()) as server:
        server.ask([Ask("The capital of Spain is", 1, "warm")], make_reader)
        found = [server.ask([ask], make_reader)[0] for ask in alone]
        return [*found, server.ask([*fill, last], make_reader)[-1]]


def mixed_load(make_reader: Callable[[], Reader] | None = None) -> tuple[list[Timed], Scrape]:
    """Seventeen requests of three tenants, one at a time; and what /metrics says afterwards."""
    chat = [Ask(f"Translate the word {word}:", 2, f"chat {word}", key="chat") for word in _FEW_WORDS]
    archive = [Ask(long_prompt(about), 2, f"archive {about}", key="archive") for about in ("ships", "maps", "coins")]
    shop = [
        Ask("The best product is", 2, f"shop {number}", key="shop",
            fields={"structured_outputs": {"choice": catalogue(f"no{number}")}})
        for number in range(2)
    ]  # fmt: skip
    order = [
        *chat[:4],
        archive[0],
        *chat[4:6],
        shop[0],
        archive[1],
        *chat[6:9],
        shop[1],
        archive[2],
        *chat[9:],
        archive[2],
    ]
    with stamped(llm(), settings_with({"chat": "", "archive": "", "shop": ""})) as server:
        found = [server.ask([ask], make_reader)[0] for ask in order]
        return found, scrape(server.url)


_FEW_WORDS = ("house", "river", "bread", "stone", "cloud", "window", "garden", "winter", "silver", "letter", "bridge")


def by_slice(timed: Sequence[Timed], name: str, slice_of: Callable[[Timed], str]) -> str:
    """A line for each slice: its median and its largest TTFT, and the term that is largest in its slowest request."""
    groups: dict[str, list[Timed]] = {}
    for one in timed:
        groups.setdefault(slice_of(one), []).append(one)
    lines = []
    for label, group in sorted(groups.items()):
        slowest = max(group, key=lambda one: one.ttft_s)
        term = max(slowest.terms, key=slowest.terms.__getitem__)
        median_s = statistics.median(one.ttft_s for one in group)
        lines.append(
            f"{name:8} {label:10} {len(group):3} requests  median {1e3 * median_s:6,.0f} ms  "
            f"largest {1e3 * slowest.ttft_s:6,.0f} ms, most of it {term}"
        )
    return "\n".join(lines)


SLICES: dict[str, Callable[[Timed], str]] = {
    "tenant": lambda one: one.answer.ask.key,
    "prompt": lambda one: "long" if one.output.metrics.num_prompt_tokens >= 100 else "short",
    "guided": lambda one: "yes" if one.answer.ask.fields else "no",
    "hit": lambda one: "yes" if one.output.metrics.num_cached_tokens else "no",
}
