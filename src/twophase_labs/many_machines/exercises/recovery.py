"""7.2: a transfer that fails, and what is done then."""

from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, plain, reject
from twophase_labs.machine.exercise import exercise

TRANSFER = exercise(
    "7.3", "When a part does not come", "Transfer", points=4, minutes=18, lines=22, difficulty=3, time_limit_s=10
)
TRANSFER.objective = "recover from a failed transfer without a wrong token"
TRANSFER.hints = (
    "A layer is computed for all blocks of a prompt, so a block can be used only when *every* layer of it is here. "
    "What is the first block for which that is not so?",
    "Keep a set of (layer, block) pairs, a count of resends, and whether it is over. Both 'adopt' and 'recompute' "
    "end it.",
    "def receive(self, layer, first_block, count):\n"
    "    if self.is_over:\n"
    "        return ...\n"
    "    self.here |= {(layer, block) for block in range(...)}\n"
    "    return ...\n\n"
    "def on_sent(self):\n"
    "    if self.is_over:\n"
    "        return ...\n"
    "    if self.first_missing is not None and self.num_resends < self.max_resends:\n"
    "        ...\n"
    "    self.is_over = True\n"
    "    return ... if self.first_missing is None else ...",
)

Expected = str | tuple[str, int] | None


def said(got: Any, expected: Expected, what: str) -> None:
    """Compare an order; a list for the pair is as good as a tuple."""
    got = plain(got)
    if isinstance(expected, tuple) and type(got) in (list, tuple):
        compare(list(got), list(expected), what=what)
    else:
        compare(got, expected, what=what)


def received(transfer: Any, layer: int, first: int, count: int, expected: bool = True) -> None:
    got = plain(transfer.receive(layer, first, count))
    if type(got) is not bool:
        reject(f"receive({layer}, {first}, {count}) returned {got!r}, expected True or False")
    if got is not expected:
        why = "the transfer is under way" if expected else "the transfer is over, its blocks are in use"
        reject(f"receive({layer}, {first}, {count}) returned {got}; {why}")


def missing(transfer: Any, expected: int | None, what: str, because: str = "") -> None:
    """None is an answer here as any other, so what it should be is said beside it."""
    got = plain(transfer.first_missing)
    if got is None and expected is not None:
        reject(f"first_missing {what} is None, expected {expected}{because and ': ' + because}")
    try:
        compare(got, expected, what=f"first_missing {what}")
    except Rejected as error:
        reject(str(error), *error.details, *filter(None, (because,)))


def why(hole: tuple[int, int], holes: set[tuple[int, int]], num_blocks: int) -> str:
    """'layer 3 has blocks 0, 2, 3 and 4, but not 1': of the hole's layer."""
    layer, block = hole
    here = [str(each) for each in range(num_blocks) if (layer, each) not in holes]
    if not here:
        return f"layer {layer} has no block yet"
    blocks = f"blocks {', '.join(here[:-1])} and {here[-1]}" if here[1:] else f"block {here[0]}"
    return f"layer {layer} has {blocks}, but not {block}"


@TRANSFER.check("adopts what is whole", num_layers=(1, 3, 30), num_blocks=(1, 4, 9))
def adopts_what_is_whole(answer: Any, draw: Draw, num_layers: int, num_blocks: int) -> None:
    """first_missing is None when every block of every layer is here, in whatever order they came."""
    transfer = answer.Transfer(num_layers, num_blocks)
    missing(transfer, 0, "before anything has come")
    cells = [(layer, block) for layer in range(num_layers) for block in range(num_blocks)]
    for at in draw.permutation(len(cells)).tolist():
        received(transfer, cells[at][0], cells[at][1], 1)
    missing(transfer, None, "when every block of every layer is here")
    said(transfer.on_sent(), "adopt", f"on_sent() with all {num_layers} x {num_blocks} here")


@TRANSFER.check("finds the first hole", num_layers=(1, 4, 70), num_blocks=(2, 5, 4))
def finds_the_first_hole(answer: Any, draw: Draw, num_layers: int, num_blocks: int) -> None:
    """The first missing block is the lowest that *some* layer lacks; all layers are sent from there. What has come
    stays. The highest block that has come, or the number of them, says nothing about holes."""
    # Random holes; the lowest block that any layer lacks is what counts. The second lowest comes next, and last nothing
    # lacks: a resend takes away nothing that is here.
    for low in (draw.integer(0, num_blocks - 1), draw.integer(0, num_blocks - 1), num_blocks - 2):
        holes = {(num_layers - 1, low), (0, draw.integer(low + 1, num_blocks))}
        transfer = answer.Transfer(num_layers, num_blocks)
        for layer in range(num_layers):
            for block in range(num_blocks):
                if (layer, block) not in holes:
                    received(transfer, layer, block, 1)
        ordered = sorted(holes, key=lambda hole: hole[1])
        first = ordered[0][1]
        missing(transfer, first, f"with holes (layer, block) at {sorted(holes)}", why(ordered[0], holes, num_blocks))
        said(transfer.on_sent(), ("resend", first), f"the first on_sent() with holes (layer, block) at {sorted(holes)}")
        for layer, block in ordered:
            what = f"after a resend, with holes (layer, block) at {sorted(holes)}"
            missing(transfer, block, what, why((layer, block), holes, num_blocks))
            holes = holes - {(layer, block)}
            received(transfer, layer, block, 1)
        said(transfer.on_sent(), "adopt", "on_sent() after a resend that brought the two blocks missing")


@TRANSFER.check("counts what came, block by block", num_blocks=(2, 7, 90))
def counts_ranges(answer: Any, draw: Draw, num_blocks: int) -> None:
    """receive(layer, first_block, num_blocks) is of the blocks first_block to first_block + num_blocks - 1; the
    same block may come twice, also when nothing is missing any more."""
    # Ranges of several blocks, some of them twice; an empty one changes nothing.
    transfer = answer.Transfer(2, num_blocks)
    cut = draw.integer(1, num_blocks)
    late = answer.Transfer(1, num_blocks)
    received(late, 0, 0, num_blocks - 1)
    missing(late, num_blocks - 1, f"when {num_blocks - 1} of {num_blocks} blocks are here")
    received(transfer, 0, 0, num_blocks)
    received(transfer, 1, 0, 0)
    missing(transfer, 0, "when layer 1 has received 0 blocks")
    received(transfer, 1, 0, cut)
    missing(transfer, cut, f"when layer 1 has its first {cut} of {num_blocks} blocks")
    received(transfer, 1, 0, cut)
    missing(transfer, cut, "when the same blocks have come a second time")
    received(transfer, 1, cut, num_blocks - cut)
    missing(transfer, None, "when all blocks are here")
    received(transfer, 1, 0, num_blocks)
    missing(transfer, None, "when all blocks are here, some of them twice")


@TRANSFER.check("asks again, but not without end", max_resends=(1, 0, 3))
def resends_within_reason(answer: Any, draw: Draw, max_resends: int) -> None:
    """Each resend counts, whatever it brought; after max_resends of them a hole means 'recompute'."""
    # With nothing new in between, and with a block more after each: a resend that brings something counts, too.
    for step in (0, 1):
        num_blocks = max_resends + 2
        transfer = answer.Transfer(2, num_blocks, max_resends)
        received(transfer, 0, 0, num_blocks)
        for attempt in range(max_resends):
            what = f"on_sent() number {attempt + 1} of max_resends={max_resends}"
            said(transfer.on_sent(), ("resend", step * attempt), what)
            received(transfer, 1, attempt, step)
        said(transfer.on_sent(), "recompute", f"on_sent() after {max_resends} resends, with blocks missing")


@TRANSFER.check("asks once unless told otherwise")
def asks_once_by_default(answer: Any, draw: Draw) -> None:
    """`Transfer(num_layers, num_blocks, max_resends=1)`."""
    transfer = answer.Transfer(2, 3)
    said(transfer.on_sent(), ("resend", 0), "the first on_sent() of Transfer(2, 3)")
    said(transfer.on_sent(), "recompute", "the second on_sent() of Transfer(2, 3), to which nothing has come")


@TRANSFER.check("adopts after a resend")
def a_resend_can_succeed(answer: Any, draw: Draw) -> None:
    """What has come before a resend is still here, and counts."""
    hole = draw.integer(1, 5)
    transfer = answer.Transfer(3, 5)
    for layer in range(3):
        received(transfer, layer, 0, hole)
    said(transfer.on_sent(), ("resend", hole), f"on_sent() with blocks {hole} to 4 missing")
    for layer in range(3):
        received(transfer, layer, hole, 5 - hole)
    said(transfer.on_sent(), "adopt", "on_sent() after a resend that brought everything")


@TRANSFER.check("recomputes when the sender is lost", num_received=(0, 1, 2))
def recomputes_when_lost(answer: Any, draw: Draw, num_received: int) -> None:
    """The first token comes with the message that all was sent. Without that, the prompt is computed here, even if
    all blocks came."""
    transfer = answer.Transfer(2, 3)
    for layer in range(num_received):
        received(transfer, layer, 0, 3)
    said(transfer.on_lost(), "recompute", f"on_lost() with {num_received} of 2 layers here")


@TRANSFER.check("is over once", end=("adopt", "recompute", "lost"))
def is_over_once(answer: Any, draw: Draw, end: str) -> None:
    """After 'adopt' or 'recompute' the engine uses these blocks. A message that comes late must not be written:
    receive returns False, and on_sent and on_lost have nothing more to order."""
    # After 'adopt' or 'recompute' the blocks are in use: late messages must not be written.
    transfer = answer.Transfer(1, 2, 0)
    if end == "adopt":
        received(transfer, 0, 0, 2)
        said(transfer.on_sent(), "adopt", "on_sent() with everything here")
    elif end == "recompute":
        said(transfer.on_sent(), "recompute", "on_sent() with max_resends=0 and everything missing")
    else:
        said(transfer.on_lost(), "recompute", "on_lost()")
    name, lacks = "on_lost()" if end == "lost" else repr(end), None if end == "adopt" else 0
    missing(transfer, lacks, f"after {name}")
    received(transfer, 0, 0, 1, expected=False)
    found = plain(transfer.first_missing)
    if found != lacks:
        reject(f"after {name}, a late message changed first_missing from {lacks} to {found}; it must not be noted")
    said(transfer.on_lost(), None, f"on_lost() after {end}")
    said(transfer.on_sent(), None, f"on_sent() after {end}")


@TRANSFER.check("keeps transfers apart")
def transfers_are_apart(answer: Any, draw: Draw) -> None:
    """Each Transfer has its own blocks: is something of yours an attribute of the class, or a default list?"""
    one, other = answer.Transfer(2, 3), answer.Transfer(2, 3)
    for layer in range(2):
        received(one, layer, 0, 3)
    missing(one, None, "of a transfer that is whole")
    missing(other, 0, "of another transfer, to which nothing has come")
    said(other.on_sent(), ("resend", 0), "on_sent() of that other transfer")
    said(one.on_sent(), "adopt", "on_sent() of the whole one")
