"""8.13, 8.14 and 8.15: which requests are a canary's, when it has been looked at long enough, and another mix."""

import builtins
import inspect
import linecache
import os
import platform
import random
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from twophase_labs.machine.checks import Draw, compare, plain, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.guard import is_learners_file
from twophase_labs.operations.canary_gate import Line

NUM_KEYS = 4000

CANARY = exercise("8.13", "Which side?", "is_canary", points=3, minutes=7, lines=4, difficulty=2, time_limit_s=20)
CANARY.objective = "split traffic so that a tenant stays on one side, on every front end"
CANARY.hints = (
    "A random draw per request moves a tenant to and fro. What number can every front end compute from the salt and "
    "the key alone?",
    "`hashlib.sha256(data).digest()` is the same everywhere (`hash` of a text is not). Its first 8 bytes are a "
    "whole number below 2**64; compare that with share * 2**64.",
    "digest = hashlib.sha256(f'{salt} and {key}'.encode()).digest()   # with something safe between the two\n"
    "number = int.from_bytes(digest[:8])\n"
    "return ...   # one comparison; check the ends, 0 and 1",
)

SIGMAS = 5


def keys(draw: Draw, number: int = NUM_KEYS) -> list[str]:
    """Tenants by number, ids with no order in them, names that begin alike, and names without a letter of ASCII."""
    start = draw.integer(0, 10**6)
    kinds: tuple[Callable[[int], str], ...] = (
        lambda i: f"{draw.integer(0, 2**60):x}",
        lambda i: f"tenant-{start + i}",
        lambda i: f"organisation/europe/customer-{start + i}",
        lambda i: "".join(chr(draw.integer(0x4E00, 0x9FA6)) for _ in range(3)),
    )
    return [kinds[i % len(kinds)](i) for i in range(number)]


def side(answer: Any, key: str, share: float, salt: str) -> bool:
    got = plain(answer.is_canary(key, share, salt))
    if type(got) is not bool:
        reject(f"is_canary returned {got!r}, expected True or False")
    return got


def share_of(answer: Any, among: list[str], share: float, salt: str) -> float:
    return sum(side(answer, key, share, salt) for key in among) / len(among)


def require_share(got: float, wanted: float, number: int, what: str) -> None:
    """Within what chance allows of a fair choice."""
    allowed = SIGMAS * (wanted * (1 - wanted) / number) ** 0.5
    if abs(got - wanted) > allowed:
        reject(f"{what}: {got:.2%}, expected {wanted:.2%} +- {allowed:.2%}", f"of {number:,}")


@CANARY.check("says True or False")
def says_yes_or_no(answer: Any, draw: Draw) -> None:
    """Return the comparison itself. A key may be any text."""
    for key in ("a", "", "Zoë", "小林", "a" * 1000):
        side(answer, key, 0.5, "salt")
    for salt in ("Zoë's window", "a window of 320 keys in the second week of November, third try"):
        side(answer, "a", 0.5, salt)


@CANARY.check("takes nobody at 0 and everybody at 1")
def has_its_ends(answer: Any, draw: Draw) -> None:
    """The fraction is in [0, 1): compare with <, and do not round."""
    for key in keys(draw):
        if side(answer, key, 0.0, "v2") or side(answer, key, 0, "v2"):
            reject(f"{key!r} is a canary at a share of 0")
        if not side(answer, key, 1.0, "v2") or not side(answer, key, 1, "v2"):
            reject(f"{key!r} is no canary at a share of 1")


@CANARY.check("keeps a key on its side")
def stays(answer: Any, draw: Draw) -> None:
    """Nothing random: the same salt, key and share give the same answer at any time."""
    among = keys(draw, 200)
    first = {key: side(answer, key, 0.5, "v2") for key in among}
    for key in reversed(among):
        if side(answer, key, 0.5, "v2") != first[key]:
            reject(f"{key!r} changes sides when it comes again")


@contextmanager
def another_process() -> Iterator[None]:
    """On another machine, in which `hash` of a text gives another number, as in each new process."""
    original = builtins.hash
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        random.seed(0x5DEECE66D)
        stack.enter_context(patch.object(builtins, "hash", lambda value: original(value) ^ 0x5DEECE66D1234567))
        stack.enter_context(patch.object(os, "getpid", lambda: 4711))
        stack.enter_context(patch.object(socket, "gethostname", lambda: "front-end-7"))
        stack.enter_context(patch.object(platform, "node", lambda: "front-end-7"))
        stack.enter_context(patch.object(uuid, "getnode", lambda: 0x5DEECE66D))
        yield


def started_anew(answer: Any) -> Any:
    """The answer of a process that has just started: its cell once more, which knows nothing of what this one drew."""
    found = (inspect.unwrap(answer.is_canary), getattr(answer.is_canary, "func", None), type(answer.is_canary).__call__)
    function = next((one for one in found if isinstance(one, FunctionType)), None)
    filename = function.__code__.co_filename if function is not None else ""
    if function is None or not is_learners_file(filename):
        return answer
    silent = dict.fromkeys(("check", "print"), lambda *args, **kwargs: None)
    namespace: dict[str, Any] = {**function.__globals__, **silent}
    exec(compile("".join(linecache.getlines(filename)), filename, "exec", dont_inherit=True), namespace)
    return SimpleNamespace(is_canary=namespace["is_canary"])


@CANARY.check("is the same in another process")
def is_the_same_everywhere(answer: Any, draw: Draw) -> None:
    """Python's `hash` of a text starts from a new secret in each process, and what one process drew no other knows:
    compute the number from the salt and the key alone, as hashlib's functions do."""
    # Asked in another order, and there first.
    among = keys(draw, 200)
    with another_process():
        other = started_anew(answer)
        there = [side(other, key, 0.5, "v2") for key in reversed(among)][::-1]
    here = [side(answer, key, 0.5, "v2") for key in among]
    for key, one, other in zip(among, here, there, strict=True):
        if one != other:
            reject(f"{key!r} is on one side here and on the other in a second process of the front end")


@CANARY.check("takes its share", share=(0.5, 0.1, 0.001), number=(NUM_KEYS, NUM_KEYS, 300_000))
def takes_its_share(answer: Any, draw: Draw, share: float, number: int) -> None:
    """Each key's number should be spread evenly over the whole range. A hundred buckets know no share of a
    thousandth, and rounding shifts it."""
    got = share_of(answer, keys(draw, number), share, f"v{draw.integer(2, 99)}")
    require_share(got, share, number, f"at a share of {share:g}, canaries are")


@CANARY.check("only grows")
def only_grows(answer: Any, draw: Draw) -> None:
    """The number of a key must not depend on the share: then whatever is below the smaller share is below the
    larger one."""
    among, salt = keys(draw, 500), f"v{draw.integer(2, 99)}"
    shares = (0.01, 0.05, 0.07, 0.3, 0.31, 0.5, 0.9)
    for key in among:
        sides = [side(answer, key, share, salt) for share in shares]
        if sides != sorted(sides):
            at = sides.index(True)
            reject(f"{key!r} is a canary at {shares[at]:g} and none at a larger share", f"{dict(zip(shares, sides))}")  # noqa: B905


@CANARY.check("draws anew for each salt")
def salts_are_apart(answer: Any, draw: Draw) -> None:
    """Hash the salt together with the key, or the same tenants try out every new version."""
    # Also of salts that differ at the end only, in letters only, and in the order of their letters.
    among = keys(draw)
    for one, other in (("v2", "v3"), ("v10", "v11"), ("shadow", "window"), ("ab", "ba")):
        both = sum(side(answer, key, 0.5, one) and side(answer, key, 0.5, other) for key in among) / len(among)
        what = f"canaries of two rollouts at once, {one} and {other}, of half the keys each, are"
        require_share(both, 0.25, len(among), what)


@CANARY.check(
    "keeps salt and key apart",
    hint="'v2' + '1' and 'v' + '21' are the same text. Put a separator between them, such as '\\0'.",
)
def joins_apart(answer: Any, draw: Draw) -> None:
    # ('v2', '1tenant') is not ('v21', 'tenant'), nor ('2v', 'tenant') ('v', 'tenant2').
    among = keys(draw, 1000)
    behind = [((f"v{i}x", key), ("v", f"{i}x{key}")) for i, key in enumerate(among)]
    before = [((f"x{i}v", key), ("v", f"{key}x{i}")) for i, key in enumerate(among)]
    for pairs in (behind, before):
        same = sum(side(answer, a, 0.5, salt) == side(answer, b, 0.5, other) for (salt, a), (other, b) in pairs)
        require_share(same / len(pairs), 0.5, len(pairs), "keys whose salt and name only read alike, on one side, are")


DECIDE = exercise("8.14", "Promote, roll back, wait", "decide", points=4, minutes=8, lines=8, difficulty=2)
DECIDE.objective = "judge a canary by hard bounds first and weighted scores after, from intervals"
DECIDE.hints = (
    "Four outcomes in this order: a hard line surely broken, a hard line open, the mean surely too high, the mean "
    "surely low enough. What is none of these waits.",
    "'Surely broken' looks at `low`, 'surely kept' at `high`; in between too few requests have come.",
    "The mean is sum(weight * used) / sum(weight) with used = loss / bound, kept between 0 and 1: once with every "
    "`low` and once with every `high`. Hard lines are among them.",
)

WORDS = ("promote", "roll back", "wait")


def means(lines: list[Line]) -> tuple[float, float]:
    """What is used up at best and at worst."""
    weight = sum(line.weight for line in lines)
    low, high = (
        sum(line.weight * min(1.0, max(0.0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True))
        / weight
        for losses in ([line.low for line in lines], [line.high for line in lines])
    )
    return low, high


def by_the_rules(lines: list[Line], most_used: float) -> str:
    """From the statement, in its order, with whole lists where the solution may loop."""
    hard = [line for line in lines if line.is_hard]
    if max((line.low / line.bound for line in hard), default=0) > 1:
        return "roll back"
    if max((line.high / line.bound for line in hard), default=0) > 1:
        return "wait"
    low, high = means(lines)
    return "roll back" if low > most_used else "promote" if high <= most_used else "wait"


def decides(answer: Any, lines: list[Line], most_used: float | None = None) -> None:
    expected = by_the_rules(lines, 0.5 if most_used is None else most_used)
    with unchanged(lines=lines):
        got = plain(answer.decide(lines) if most_used is None else answer.decide(lines, most_used))
    if type(got) is not str or got not in WORDS:
        reject(f"decide returned {got!r}, expected one of {', '.join(map(repr, WORDS))}")
    if got != expected:
        told = [f"{one.name}: {one.low:g} to {one.high:g}, bound {one.bound:g}, weight {one.weight:g}"
                + ", hard" * one.is_hard for one in lines]  # fmt: skip
        reject(f"decide says {got!r}, expected {expected!r}", *told)


def line(low: float, high: float, bound: float = 1.0, weight: float = 1.0, hard: bool = False, name: str = "") -> Line:
    return Line(name or ("hard" if hard else "soft"), low, high, bound, weight, hard)


FINE, BAD, OPEN = (0.0, 0.1), (0.9, 1.0), (0.1, 0.9)


@DECIDE.check("promotes what is good")
def promotes_what_is_good(answer: Any, draw: Draw) -> None:
    """All lines are far below their bounds here."""
    decides(answer, [line(*FINE, hard=True), line(*FINE), line(*FINE)])
    decides(answer, [line(*FINE)])


@DECIDE.check("rolls back if a hard line is broken")
def breaks_by_a_hard_line(answer: Any, draw: Draw) -> None:
    """A hard line whose `low` is above its bound decides alone, whatever the other lines say."""
    # However good the others are, and whatever is open.
    decides(answer, [line(1.1, 1.4, weight=0.01, hard=True), line(*FINE, weight=9)])
    decides(answer, [line(*FINE, weight=9), line(0.2, 1.2, hard=True), line(1.1, 1.4, weight=0.01, hard=True)])


@DECIDE.check("waits while a hard line is open")
def waits_for_a_hard_line(answer: Any, draw: Draw) -> None:
    """low <= bound < high: more requests will tell. Nothing is promoted, nor rolled back by its mean, until they
    have."""
    decides(answer, [line(0.0, 1.2, weight=0.01, hard=True), line(*FINE, weight=9)])
    decides(answer, [line(0.2, 1.2, weight=0.01, hard=True), line(*BAD, weight=9)])


@DECIDE.check("weighs its lines")
def weighs(answer: Any, draw: Draw) -> None:
    """Multiply by each line's weight, and divide by the sum of weights."""
    decides(answer, [line(*FINE, weight=8), line(*BAD, weight=1)])
    decides(answer, [line(*FINE, weight=1), line(*BAD, weight=8)])
    decides(answer, [line(*FINE, weight=3), line(*BAD, weight=1)])


@DECIDE.check("lets a soft line break alone")
def hard_is_not_soft(answer: Any, draw: Draw) -> None:
    """Only lines with `is_hard` decide alone; the others count in the mean."""
    # A soft line far beyond its bound is one line of several.
    decides(answer, [line(*FINE, hard=True), line(3.0, 4.0), line(*FINE), line(*FINE)])


@DECIDE.check("counts a line as 1 at most")
def caps_a_line(answer: Any, draw: Draw) -> None:
    """min(1, loss / bound): no line is lost twice."""
    decides(answer, [line(*FINE, weight=2), line(7.0, 9.0)])


@DECIDE.check("takes a gain for no loss")
def no_gain_makes_up(answer: Any, draw: Draw) -> None:
    """max(0, ...): one line's gain does not pay for another's loss. A hard line's gain breaks no bound, and counts
    as 0 in the mean."""
    # What has become better is no loss, and no credit for another line.
    decides(answer, [line(*BAD, weight=2), line(-9.0, -8.0), line(0.0, 0.05, weight=0.5)])
    decides(answer, [line(-9.0, -8.0, weight=4), line(*FINE)])
    decides(answer, [line(-0.4, 0.3, hard=True), line(0.5, 0.7, weight=2), line(-0.5, -0.1, weight=2)])
    for gain in ((-9.0, -8.0), (-3.0, 0.1), (-0.9, 0.2)):  # of a hard line
        decides(answer, [line(*gain, hard=True), line(*FINE)])
        decides(answer, [line(*gain, hard=True), line(0.8, 0.9, weight=9)])


@DECIDE.check("has hard lines in the mean, too")
def counts_hard_lines_too(answer: Any, draw: Draw) -> None:
    """A hard line that is kept has still used some of what may be lost. It counts by its weight, as all do."""
    # A hard line within its bound still uses some of what may be lost.
    decides(answer, [line(0.85, 0.95, weight=3, hard=True), line(*FINE, weight=1)])
    decides(answer, [line(*FINE, weight=3, hard=True), line(*BAD, weight=1)])
    decides(answer, [line(0.8, 0.8, hard=True), line(0.15, 0.15)])  # each by its own weight, no more


@DECIDE.check("waits while the mean is open")
def waits_for_the_mean(answer: Any, draw: Draw) -> None:
    """Two means: with every `low`, and with every `high`. If most_used is between them, wait."""
    decides(answer, [line(*OPEN), line(*OPEN)])
    decides(answer, [line(0.0, 0.6), line(0.0, 0.6)])
    decides(answer, [line(0.4, 1.2), line(0.4, 1.2)])


@DECIDE.check("takes the bounds it is given")
def takes_other_bounds(answer: Any, draw: Draw) -> None:
    """Each line has a unit of its own: divide its loss by its bound. And `most_used` is an argument, which may be 0."""
    decides(answer, [line(0.0, 0.004, bound=0.02), line(0.0, 30.0, bound=100.0)])
    decides(answer, [line(0.018, 0.02, bound=0.02), line(90.0, 99.0, bound=100.0)])
    for most in (0.0, 0.05, 0.95):
        decides(answer, [line(*FINE), line(0.2, 0.3)], most)
        decides(answer, [line(*BAD), line(0.7, 0.8)], most)


@DECIDE.check("lets what is at the bound pass")
def keeps_the_edges(answer: Any, draw: Draw) -> None:
    """Broken is above the bound, kept is at most the bound; the same for the mean and most_used. Round nothing."""
    # Binary fractions: just at the bound is within it, and whatever is above is above, however little.
    decides(answer, [line(1.0, 1.0, weight=0.25, hard=True), line(0.0, 0.0, weight=0.75)])
    decides(answer, [line(0.25, 0.5), line(0.25, 0.5)])
    decides(answer, [line(0.5, 0.75), line(0.5, 0.75)])
    decides(answer, [line(0.25, 0.5002)])
    decides(answer, [line(0.5002, 0.75)])
    decides(answer, [line(0.5, 1.0002, hard=True), line(*FINE, weight=9)])


def some_lines(draw: Draw) -> list[Line]:
    lines = []
    for number in range(draw.integer(1, 6)):
        low = draw.integer(-16, 40) / 32
        lines.append(line(low, low + draw.integer(0, 16) / 32, draw.choice([0.5, 1.0, 2.0]),
                          draw.choice([1.0, 2.0, 6.0]), draw.integer(0, 3) == 0, f"line {number}"))  # fmt: skip
    return lines


@DECIDE.check("judges any canary")
def any_canary(answer: Any, draw: Draw) -> None:
    """Follow the four steps of the statement in their order."""
    # But none whose mean is at most_used: there the order of roundings would decide.
    for most_used in (None, 0.3) * 20:
        lines = some_lines(draw)
        while any(abs(mean - (most_used or 0.5)) < 1e-6 for mean in means(lines)):
            lines = some_lines(draw)
        decides(answer, lines, most_used)


MIX = exercise("8.15", "At the same mix", "rate_at_mix", points=2, minutes=5, lines=6, difficulty=2, is_extra=True)
MIX.objective = "compare two sides whose traffic differs"
MIX.hints = (
    "What would the canary's rate be if its slices were as frequent as the baseline's?",
    "A mean over the slices of `mix`, weighted by its counts, of passed / requests.",
    "total = sum(mix.values())\nfor name, count in mix.items():\n    ...   # None, or count / total * rate",
)


def by_hand(passed: dict[str, tuple[int, int]], mix: dict[str, int]) -> float:
    total = sum(mix.values())
    return sum(mix[name] / total * passed[name][0] / passed[name][1] for name in mix)


def agrees(answer: Any, passed: dict[str, tuple[int, int]], mix: dict[str, int]) -> None:
    with unchanged(passed=passed, mix=mix):
        got = answer.rate_at_mix(passed, mix)
    compare(got, by_hand(passed, mix), what="rate_at_mix", atol=1e-9)


@MIX.check("has the rate of one slice")
def one_slice(answer: Any, draw: Draw) -> None:
    """passed / requests."""
    agrees(answer, {"short": (30, 40)}, {"short": 7})
    agrees(answer, {"short": (0, 40)}, {"short": 7})  # a rate of 0 is a rate
    agrees(answer, {"short": (1, 1)}, {"short": 7})  # and so is that of one request


@MIX.check("keeps a rate at its own mix")
def same_mix(answer: Any, draw: Draw) -> None:
    """At its own mix it is the plain rate of all requests."""
    agrees(answer, {"short": (90, 100), "long": (5, 10)}, {"short": 100, "long": 10})


@MIX.check("follows the other mix")
def other_mix(answer: Any, draw: Draw) -> None:
    """Weight each slice's rate by its share of `mix`, by its name."""
    agrees(answer, {"short": (90, 100), "long": (5, 10)}, {"short": 10, "long": 100})
    agrees(answer, {"long": (5, 10), "short": (90, 100)}, {"short": 10, "long": 100})  # in another order
    agrees(answer, {"short": (1, 100), "long": (10, 10)}, {"short": 50, "long": 50})
    agrees(answer, {"short": (90, 100), "long": (0, 10)}, {"short": 50, "long": 50})  # none passed: that is known


@MIX.check("passes over slices that the mix has not")
def slice_of_no_weight(answer: Any, draw: Draw) -> None:
    """Loop over `mix`, not `passed`."""
    # It is not in the other side's traffic.
    agrees(answer, {"short": (90, 100), "new": (40, 50)}, {"short": 12})
    agrees(answer, {"new": (0, 0), "short": (90, 100)}, {"short": 12})  # whatever is known of it


@MIX.check("says None where it knows nothing")
def missing_slice(answer: Any, draw: Draw) -> None:
    """A slice of the mix that the canary has not served at all has no rate; 0 and leaving it out are both
    inventions. One such slice is enough, at any place. Look it up with `get`, which adds nothing."""
    # At any place of the mix, however rare.
    known = {"short": (90, 100), "image": (8, 10)}
    for passed in (known, {**known, "long": (0, 0)}):
        for mix in ({"short": 90, "long": 10}, {"long": 10, "short": 90}, {"short": 45, "long": 10, "image": 45},
                    {"short": 990, "long": 1}, {"long": 10}):  # fmt: skip
            with unchanged(passed=passed, mix=mix):
                got = answer.rate_at_mix(passed, mix)
            if got is not None:
                reject(f"the canary has served no long prompt, and rate_at_mix says {got!r}",
                       f"passed {passed}, mix {mix}", "expected None: nothing is known")  # fmt: skip


@MIX.check("is right for any mix")
def any_mix(answer: Any, draw: Draw) -> None:
    """Divide by the sum of the mix's counts."""
    for _ in range(20):
        names = [f"slice {i}" for i in range(draw.integer(1, 6))]
        passed = {}
        for name in names:
            number = draw.integer(1, 200)
            passed[name] = (draw.integer(0, number + 1), number)
        order = draw.permutation(len(names)).tolist()[: draw.integer(1, len(names) + 1)]
        agrees(answer, passed, {names[at]: draw.integer(1, 300) for at in order})
