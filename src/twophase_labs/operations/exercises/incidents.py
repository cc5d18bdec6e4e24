"""8.5, 8.6 and 8.7: what the dashboards show, the cures, and a diagnosis that reads samples."""

import copy
from collections.abc import Callable
from typing import Any

from twophase_labs.machine.checks import Draw, plain, reject, shown
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching
from twophase_labs.operations import unseen
from twophase_labs.operations.incidents import CAUSES, Hour, Sample

ANSWER_8_5 = exercise("8.5", "Evidence first", kind="matching", points=2, minutes=8)
ANSWER_8_5.objective = "tell the cause of an incident from what follows from it"
ANSWER_8_5.question = Matching(
    "abcdefgh",
    {
        "A": "f",
        "B": "d",
        "C": "e",
        "D": "h",
        "E": "g",
    },
    hint="In each column, some rows differ from the healthy one. Which of them can cause the others, and which "
    "can only follow?",
)

DIAGNOSE = exercise(
    "8.7", "A diagnosis from scraped samples", "diagnose", points=4, minutes=25, lines=16, difficulty=3, is_extra=True
)
DIAGNOSE.time_limit_s = 180
DIAGNOSE.objective = "name an incident's cause from counters and gauges, on hours never seen"
DIAGNOSE.hints = (
    "Ask for causes first, in any order, and for what follows from them last: invalid JSON, lost needles and slow "
    "transfers can fill a pool; a full pool makes no JSON invalid.",
    "Counters: last sample minus first one. Gauges: the median of the samples that are not None. Compare both with "
    "the same numbers of `healthy`: a difference for shares, a factor for times.",
    "def rose(samples, part, whole):\n"
    "    total = ...  # by how much `whole` rose\n"
    "    return ... / total if total else 0.0\n\n"
    "def usual(samples, name):\n"
    "    known = sorted(...)\n"
    "    return known[len(known) // 2] if known else 0.0\n\n"
    "if rose(window, 'json_invalid_total', 'json_total') > ... + 0.2:\n"
    "    return 'format'\n"
    "...\n"
    "return 'healthy'",
)

SAYS = {
    "healthy": "nothing is wrong: these numbers vary as they did in the healthy hour",
    "kv": "answers are far longer than planned, and the pool of K/V blocks is full",
    "batching": "whole prompts are computed in one step, and decodes wait for them",
    "retrieval": "needles in long texts are no longer found",
    "format": "answers that should be JSON are not, and clients ask again",
    "transfer": "K and V take long from one engine to the other",
}


# Of the hours that are graded. In one minute of ten chance alone makes a healthy link look three times as slow as in
# another healthy minute; there right diagnoses differ. In these none of the bank's does (test_hours.py, --full).
SEEDS = (*range(101, 110), *range(111, 118))


Edit = Callable[[list[Sample]], list[Sample]]


def diagnosed(answer: Any, hour: Hour, seed: int, edit: Edit | None = None) -> None:
    """The hour's window, and the healthy window of its service at another time."""
    window = copy.deepcopy(hour.window(seed))
    healthy = copy.deepcopy(unseen.OF_ITS_SERVICE[hour].window(seed + 1000))
    window = edit(window) if edit else window
    got = plain(answer.diagnose(window, healthy))
    if got not in CAUSES:
        reject(f"diagnose returned {shown(got)}", f"It returns one of {', '.join(map(repr, CAUSES))}.")
    if got != hour.cause:
        reject(f"diagnose says {got!r} of an hour in which {SAYS[hour.cause]}", f"expected {hour.cause!r}")


def of(*hours: Hour) -> Callable[..., None]:
    def test(answer: Any, draw: Draw) -> None:
        for hour in hours:
            diagnosed(answer, hour, draw.choice(SEEDS))

    return test


@DIAGNOSE.check("knows a healthy hour")
def knows_healthy_hours(answer: Any, draw: Draw) -> None:
    """A busy hour is healthy, and one with prefill and decode apart, too: some waiting, some invalid JSON and a
    transfer of a tenth of a second are as usual there. Leave room for chance: a slice has few answers in a minute."""
    of(unseen.HEALTHY, unseen.HEALTHY_APART, unseen.BUSY)(answer, draw)
    diagnosed(answer, unseen.HEALTHY_APART, 105)  # of the healthy minutes the one with the slowest transfers


DIAGNOSE.check(
    "names a full pool",
    hint="K/V use near 1 in most samples, far above that of the healthy hour: `kv`. There may be few preemptions, or "
    "no TTFT at all when nothing gets a first token.",
)(of(unseen.KV, unseen.LONGER_ANSWERS))
DIAGNOSE.check(
    "names prompts that hold up decodes",
    hint="ITL p99 far above that of the healthy hour, and thousands of prompt tokens in one step: `batching`.",
)(of(unseen.BATCHING, unseen.WHOLE_PROMPTS))
DIAGNOSE.check(
    "names lost needles", hint="Of the needles asked for in this window, what share was found? No latency will tell."
)(of(unseen.RETRIEVAL, unseen.FEWER_NEEDLES))
DIAGNOSE.check("names invalid JSON", hint="Of the JSON answers in this window, what share was invalid?")(
    of(unseen.FORMAT, unseen.MORE_INVALID)
)
DIAGNOSE.check(
    "names a slow link",
    hint="transfer_p99_s against that of the healthy hour. It is None in samples in which nothing arrived.",
)(of(unseen.TRANSFER, unseen.JITTER_ALONE))


@DIAGNOSE.check("looks at the window, not at all that ever was")
def counts_over_the_window(answer: Any, draw: Draw) -> None:
    """A counter starts when the process does. What happened in the window is its last value less its first."""
    seed = draw.choice(SEEDS)
    diagnosed(answer, unseen.HEALTHY, seed, with_a_history)
    diagnosed(answer, unseen.BATCHING, seed, with_a_history)


def with_a_history(window: list[Sample]) -> list[Sample]:
    """The same hour of a service that has had incidents before: its counters did not start at zero."""
    before = {
        "preemptions_total": 640,
        "json_total": 900,
        "json_invalid_total": 700,
        "long_needles_total": 400,
        "long_needles_found_total": 90,
        "short_needles_total": 400,
        "short_needles_found_total": 200,
        "answers_total": 3000,
        "answer_tokens_total": 3000 * 900,
        "output_tokens_total": 3000 * 900,
    }
    return [sample | {name: (sample[name] or 0) + count for name, count in before.items()} for sample in window]


def with_one_odd_sample(window: list[Sample]) -> list[Sample]:
    odd = len(window) // 2
    sample = window[odd]
    factors = {"itl_p99_s": 12, "ttft_p99_s": 40, "transfer_p99_s": 60, "largest_prefill_tokens": 12}
    changed = {name: None if (value := sample[name]) is None else value * by for name, by in factors.items()}
    window[odd] = sample | changed | {"kv_usage": 1.0, "num_waiting": 70}
    return window


def without_json(window: list[Sample]) -> list[Sample]:
    first = {name: window[0][name] for name in ("json_total", "json_invalid_total")}
    return [sample | first for sample in window]


@DIAGNOSE.check("copes with a minute without JSON")
def copes_without_json(answer: Any, draw: Draw) -> None:
    """No answer of this kind has ended in the window: there is no share of them, and nothing is wrong."""
    seed = draw.choice(SEEDS)
    diagnosed(answer, unseen.HEALTHY, seed, without_json)
    diagnosed(answer, unseen.RETRIEVAL, seed, without_json)


@DIAGNOSE.check("is not misled by one odd sample")
def survives_an_odd_sample(answer: Any, draw: Draw) -> None:
    """The largest value is that of the oddest sample, and a mean follows it. Take the median."""
    seed = draw.choice(SEEDS)
    diagnosed(answer, unseen.HEALTHY, seed, with_one_odd_sample)
    diagnosed(answer, unseen.HEALTHY_APART, seed, with_one_odd_sample)


DIAGNOSE.check(
    "compares with the healthy hour of that service",
    hint="On another GPU all times are shorter, with larger chunks longer, and both are healthy there. Fixed "
    "milliseconds fit one service.",
)(of(unseen.LARGE_CHUNKS, unseen.HEALTHY_A100, unseen.BATCHING_A100))
DIAGNOSE.check(
    "names the cause, not what follows from it",
    hint="Here the pool is full *because* clients ask again and again. Look for causes first.",
)(of(unseen.RETRIES_FILL_IT))


@DIAGNOSE.check("leaves the samples alone")
def changes_nothing(answer: Any, draw: Draw) -> None:
    """Do not change or sort the lists that you are given."""
    window, healthy = (copy.deepcopy(unseen.HEALTHY.window(seed)) for seed in (7, 8))
    answer.diagnose(window, healthy)
    if window != unseen.HEALTHY.window(7) or healthy != unseen.HEALTHY.window(8):
        reject("the call modified its samples", "They are the monitoring system's; work on a copy.")


ANSWER_8_6 = exercise("8.6", "The cure that fits", kind="matching", points=2, minutes=4)
ANSWER_8_6.objective = "choose a cure by the cause, not by the symptom"
ANSWER_8_6.question = Matching(
    "abcde",
    {
        "A": "d",
        "B": "b",
        "C": "a",
        "D": "c",
        "E": "e",
    },
    hint="What would have to be different for the row that you chose to look as in the healthy hour?",
)
