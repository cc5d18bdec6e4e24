"""1.9 Where to put it: one piece or pages."""

from string import ascii_letters
from typing import Any

from twophase.cache.manager import CacheManager
from twophase.core.errors import OutOfBlocksError
from twophase_labs.autoregression.arrivals import Paged, random_requests, replay
from twophase_labs.machine.checks import Draw, compare, integer, number, raises, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number

Owners = list[str | int | None]


# Requests are called by letters, numbers and, in the worst of services, the empty string: only None is nobody.
NAMES: tuple[str | int, ...] = (0, "", *ascii_letters[:28])


def random_owners(draw: Draw, num_slots: int, num_steps: int = 60) -> Owners:
    """What is left after requests came and went in random places."""
    owners: Owners = [None] * num_slots
    for step in range(num_steps):
        start = draw.integer(0, num_slots)
        end = min(num_slots, start + draw.integer(1, max(2, num_slots // 8)))
        name = NAMES[step // 2 % len(NAMES)]
        owners[start:end] = [None if step % 2 else name] * (end - start)
    return owners


def free_starts(owners: Owners, length: int) -> list[int]:
    """Every place where `length` adjacent slots are free."""
    return [
        start
        for start in range(len(owners) - length + 1)
        if all(owner is None for owner in owners[start : start + length])
    ]


def picture(owners: Owners) -> str:
    """Slots as text: a letter for the holder, '.' where it is free."""
    return "".join("." if owner is None else str(owner) or "_" for owner in owners)


def fits_cases(draw: Draw, num_slots: int) -> list[tuple[Owners, int]]:
    """Caches, and for each a length that some hole has room for (1, if there is none)."""
    falsy: Owners = [0, "", *[None] * (num_slots - 2)]
    caches = [falsy, *(random_owners(draw, num_slots) for _ in range(40))]
    return [(owners, draw.integer(0, longest_hole(owners)) + 1 if longest_hole(owners) else 1) for owners in caches]


def longest_hole(owners: Owners) -> int:
    return max((length for _, length in runs_of_none(owners)), default=0)


def gives_adjacent_free_slots(answer: Any, draw: Draw, num_slots: int) -> None:
    for owners, length in fits_cases(draw, num_slots):
        returned = answer.first_fit(list(owners), length)
        if returned is None:
            continue
        start = integer(returned)
        if start is None:
            reject(f"the place is {returned!r}, expected a slot's number or None")
        if start not in free_starts(owners, length):
            reject(
                f"slots {start} to {start + length - 1} are not all free slots of the cache",
                f"slots {picture(owners)}",
                f"asked for {length} in one piece",
            )


def finds_a_hole(answer: Any, draw: Draw, where: str) -> None:
    length = draw.integer(2, 9)
    before, after = {"at the start": (0, 5), "in the middle": (4, 5), "at the very end": (7, 0)}[where]
    owners: Owners = [*["a"] * before, *[None] * length, *["b"] * after]
    got = answer.first_fit(list(owners), length)
    if got != before:
        reject(
            f"got {got!r}, expected {before}: a hole of exactly {length} slots {where}",
            f"slots {picture(owners)}",
        )


def says_no(answer: Any, draw: Draw, num_slots: int) -> None:
    for owners, _ in fits_cases(draw, num_slots):
        longest = longest_hole(owners)
        got = answer.first_fit(list(owners), longest + 1)
        if got is not None:
            reject(
                f"got {got!r}, expected None: the longest hole has {longest} slots, asked for {longest + 1}",
                f"slots {picture(owners)}",
            )


def takes_the_first(answer: Any, draw: Draw, num_slots: int) -> None:
    for owners, length in fits_cases(draw, num_slots):
        places = free_starts(owners, length)
        expected = places[0] if places else None
        got = answer.first_fit(list(owners), length)
        if got != expected:
            reject(f"got {got!r}, expected {expected!r} for {length} slots", f"slots {picture(owners)}")


def only_looks(answer: Any, draw: Draw, fits: bool) -> None:
    owners = random_owners(draw, 30)
    with unchanged(slots=owners):
        answer.first_fit(owners, longest_hole(owners) + (not fits))


# -- 1.17


def fragmentation(answer: Any, owners: Owners, written: dict[str | int, int]) -> tuple[float, float]:
    mine, theirs = list(owners), dict(written)
    try:
        with unchanged(owners=mine, written=theirs):
            got = answer.fragmentation(mine, theirs)
    except ZeroDivisionError:
        reject("it divides by zero", f"slots {picture(owners)}", "Nothing held, or nothing free, means 0.")
    if not (isinstance(got, tuple | list) and len(got) == 2):
        reject(f"the result is {got!r}, expected two numbers: internal and external")
    internal, external = number(got[0]), number(got[1])
    if internal is None or external is None:
        reject(f"the result is {got!r}, expected two numbers: internal and external")
    return internal, external


def snapshot(draw: Draw, num_holders: int) -> tuple[Owners, dict[str | int, int]]:
    """Holders of several slots, two of them empty or more, between holes of different lengths.

    The first holder comes back at the end, behind the last hole: pieces of one request need not be neighbours. With
    two holders or more the longest hole is the first, in front of them all.
    """
    holes = ((draw.permutation(num_holders) + 1) * (3 if num_holders > 20 else 1)).tolist()
    owners: Owners = [None] * (num_holders + 2) if num_holders % 2 else []
    written: dict[str | int, int] = {}
    for name, hole in zip(NAMES, holes, strict=False):
        num_held = draw.integer(3, 9)
        written[name] = draw.integer(0, num_held - 1)
        owners += [name] * num_held + [None] * hole
    return [*owners, NAMES[0], NAMES[0]], written


def runs_of_none(owners: Owners) -> list[tuple[int, int]]:
    """(start, length), found slot by slot."""
    found: list[tuple[int, int]] = []
    for slot, owner in enumerate(owners):
        if owner is None and slot and owners[slot - 1] is None:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        elif owner is None:
            found.append((slot, 1))
    return found


def measures_inside(answer: Any, draw: Draw, num_holders: int) -> None:
    owners, written = snapshot(draw, num_holders)
    num_held = sum(1 for owner in owners if owner is not None)
    for filled in (written, {name: count + 1 for name, count in written.items()}):
        internal, _ = fragmentation(answer, owners, filled)
        expected = (num_held - sum(filled.values())) / num_held
        if abs(internal - expected) > 1e-6:
            reject(
                f"internal fragmentation is {internal:.4g}, expected {expected:.4g}",
                f"{num_held} of {len(owners)} slots are held, {sum(filled.values())} of them hold a token",
            )


def measures_outside(answer: Any, draw: Draw, num_holders: int) -> None:
    owners, written = snapshot(draw, num_holders)
    lengths = [length for _, length in runs_of_none(owners)]
    _, external = fragmentation(answer, owners, written)
    expected = (sum(lengths) - max(lengths)) / sum(lengths)
    if abs(external - expected) > 1e-6:
        reject(
            f"external fragmentation is {external:.4g}, expected {expected:.4g}",
            f"slots {picture(owners)}",
            f"{sum(lengths)} of {len(owners)} slots are free, the longest hole has {max(lengths)}",
        )


def knows_the_extremes(answer: Any, draw: Draw, cache: str) -> None:
    owners: Owners = [None] * 6 if cache == "empty" else ["a"] * 6
    written: dict[str | int, int] = {} if cache == "empty" else {"a": 6}
    compare(fragmentation(answer, owners, written), (0.0, 0.0), what="(internal, external)")


def knows_the_example(answer: Any, draw: Draw) -> None:
    owners: Owners = ["a", "a", None, "b", "b", None, None, None]
    got = fragmentation(answer, owners, {"a": 1, "b": 2})
    compare(got, (0.25, 0.25), what="(internal, external) of the card's example")


# -- 1.19


def new_cache(num_blocks: int, block_size: int) -> CacheManager:
    return CacheManager(num_blocks, block_size, enable_prefix_caching=False)


def in_use(cache: CacheManager) -> int:
    return cache.num_blocks - cache.num_free_blocks


def takes_pages_for_the_prompt(
    answer: Any, draw: Draw, num_prompt: int, block_size: int = 4, num_blocks: int = 16
) -> None:
    cache = new_cache(num_blocks, block_size)
    table = answer.admit(cache, num_prompt)
    if table is None:
        slots = num_blocks * block_size
        reject(f"a prompt of {num_prompt} tokens is turned away from an empty cache of {slots} slots")
    pages = -(-num_prompt // block_size)
    compare(in_use(cache), pages, what=f"the number of pages of {block_size} slots for {num_prompt} tokens")
    compare(table.num_tokens, num_prompt, what="the table's num_tokens")


def turns_away_unharmed(answer: Any, draw: Draw, num_blocks: int) -> None:
    cache = new_cache(num_blocks, 4)
    first = answer.admit(cache, 4 * (num_blocks - 1))
    try:
        second = answer.admit(cache, 5)
    except OutOfBlocksError:
        reject("a request that does not fit raises OutOfBlocksError", "It should get None, and the next one a chance.")
    if second is not None:
        reject(f"5 tokens are admitted to a cache with 1 free page of 4 slots (of {num_blocks})")
    third = answer.admit(cache, 4)
    if third is None:
        reject("a prompt of 4 tokens is turned away, and there is 1 free page of 4 slots: it would just fit")
    cache.close(third)
    cache.close(first)
    compare(in_use(cache), 0, what="the number of pages in use once the first request is closed")


def says_when_pages_run_out(answer: Any, draw: Draw) -> None:
    """No free page: nothing can be written, and what the table says stays true."""
    cache = new_cache(2, 3)
    table = answer.admit(cache, 6)
    raises(OutOfBlocksError, answer.write_token, cache, table)
    compare(table.num_tokens, 6, what="the table's num_tokens after a write that found no page")


def one_slot_per_token(answer: Any, draw: Draw, block_size: int) -> None:
    cache = new_cache(12, block_size)
    table = answer.admit(cache, 3)
    taken = [table.slot_of(position) for position in range(3)]
    for position in range(3, 11 * block_size):
        slot = answer.write_token(cache, table)
        compare(table.num_tokens, position + 1, what="the table's num_tokens after a write")
        expected_blocks = -(-(position + 1) // block_size)
        compare(in_use(cache), expected_blocks, what=f"the number of pages for {position + 1} tokens")
        compare(slot, table.slot_of(position), what=f"the slot of position {position}")
        taken.append(slot)
    if len(set(taken)) != len(taken):
        reject("two tokens got one slot", f"slots {taken}")


def gives_everything_back(answer: Any, draw: Draw, num_requests: int) -> None:
    cache = new_cache(32, 4)
    tables = [answer.admit(cache, draw.integer(1, 12)) for _ in range(num_requests)]
    for table in tables:
        for _ in range(draw.integer(0, 6)):
            answer.write_token(cache, table)
    held = [len(table.block_ids) for table in tables]
    for index, table in enumerate(tables):
        answer.finish(cache, table)
        compare(in_use(cache), sum(held[index + 1 :]), what=f"the number of pages in use after {index + 1} finished")


def lost_with_pages() -> int:
    """Requests that the trace of the notebook loses on pages that grow with each token."""

    def admit(cache: CacheManager, num_prompt: int) -> Any:
        table = cache.open([0] * num_prompt)
        try:
            cache.grow(table, num_prompt)
        except OutOfBlocksError:
            cache.close(table)
            return None
        return table

    def write(cache: CacheManager, table: Any) -> None:
        cache.grow(table, table.num_tokens + 1)

    result = replay(random_requests(40, seed=3), Paged(new_cache(25, 4), admit, write, CacheManager.close))
    return len(result.refused) + len(result.cut_short)


HOLDERS = ({"num_holders": 2}, {"num_holders": 3}, {"num_holders": 4}, {"num_holders": 13}, {"num_holders": 30})
SIZES = ({"num_slots": 8}, {"num_slots": 30}, {"num_slots": 100}, {"num_slots": 400})

EXERCISES = (
    Exercise(
        id="1.16",
        title="First fit",
        kind="code",
        names=("first_fit",),
        points=3,
        minutes=7,
        lines=3,
        difficulty=2,
        objective="allocate adjacent slots",
        hints=(
            "Try it by hand on `a.b..c`: where do 2 slots fit?",
            "Only neighbours count: what must happen to the run when a slot is taken?",
            "The run ends at `slot`, so it began at `slot - length + 1`.",
        ),
        checks=(
            Property(
                "gives adjacent free slots",
                gives_adjacent_free_slots,
                "The slots must be free, neighbours, and inside the cache. A taken slot ends a run.",
                SIZES,
            ),
            Property(
                "finds a hole wherever it is",
                finds_a_hole,
                "A hole may begin at slot 0 or end at the last slot, and may be exactly as long as asked.",
                ({"where": "at the start"}, {"where": "in the middle"}, {"where": "at the very end"}),
            ),
            Property(
                "says None when no hole is long enough", says_no, "Enough free slots in all is not enough.", SIZES
            ),
            Property(
                "takes the first hole that fits",
                takes_the_first,
                "The lowest start; not the best fit, not the last.",
                SIZES,
            ),
            Property(
                "only looks",
                only_looks,
                "Whoever asks will mark the slots; work on the list without changing it.",
                ({"fits": True}, {"fits": False}),
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="1.17",
        title="Two kinds of waste",
        kind="code",
        names=("fragmentation",),
        points=3,
        minutes=6,
        lines=2,
        objective="measure internal and external fragmentation",
        hints=(
            "The check prints the slots; count by hand.",
            "Internal: how many slots are held and empty? External: how many free ones are outside the longest hole?",
            "1 - written / held, and 1 - longest / free; 0 when there is nothing to divide by.",
        ),
        checks=(
            Property(
                "measures the waste inside reservations",
                measures_inside,
                "Divide by the slots that are held, not by all of them.",
                HOLDERS,
            ),
            Property(
                "measures the waste between reservations",
                measures_outside,
                "Divide by the slots that are free; what counts is the longest hole.",
                HOLDERS,
            ),
            Property(
                "is zero when empty and when full",
                knows_the_extremes,
                "Nothing held: no waste inside. Nothing free: no waste between.",
                ({"cache": "empty"}, {"cache": "full"}),
            ),
            Property("gives what the card says", knows_the_example, "Count the slots of the example by hand."),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="1.18",
        title="Lost requests, with pages",
        kind="prediction",
        names=("guess_1_18",),
        points=1,
        minutes=2,
        objective="estimate what pages save",
        hints=("How full was the cache with tokens, when it refused?",),
        question=Number(
            lost_with_pages,
            rel=0,
            abs=3,
            unit="requests",
            hint="The same 100 slots held tokens in about a third of them; pages can fill the others.",
        ),
    ),
    Exercise(
        id="1.19",
        title="The same requests on pages",
        kind="code",
        names=("admit", "write_token", "finish"),
        points=4,
        minutes=8,
        lines=5,
        difficulty=2,
        objective="use the engine's cache manager",
        hints=(
            "The check counts pages: ceil(tokens / 4).",
            "`cache.grow(table, n)` makes room for n tokens in all, not for n more.",
            "A new token makes it `table.num_tokens + 1` tokens; its slot is that of the last position.",
        ),
        checks=(
            Property(
                "takes the pages that the prompt fills",
                takes_pages_for_the_prompt,
                "Room for the prompt, and nothing for what the answer may become.",
                (
                    {"num_prompt": 1},
                    {"num_prompt": 4},
                    {"num_prompt": 9},
                    {"num_prompt": 12, "block_size": 3, "num_blocks": 4},
                    {"num_prompt": 300, "block_size": 7, "num_blocks": 50},
                ),
            ),
            Property(
                "turns away what does not fit",
                turns_away_unharmed,
                "`cache.can_grow(table, num_tokens)` asks before it takes.",
                ({"num_blocks": 2}, {"num_blocks": 6}),
            ),
            Property(
                "gives each token one slot, and a page when one is full",
                one_slot_per_token,
                "grow to one token more than the table has; the new token is the last one.",
                ({"block_size": 4}, {"block_size": 8}, {"block_size": 3}),
            ),
            Property(
                "says when pages run out",
                says_when_pages_run_out,
                "Let the error of `cache.grow` through: whoever writes has to know that there was no slot.",
            ),
            Property(
                "gives every page back",
                gives_everything_back,
                "A request that ends closes its table, or its pages are lost for good.",
                ({"num_requests": 1}, {"num_requests": 4}),
            ),
        ),
        time_limit_s=10,
    ),
)
