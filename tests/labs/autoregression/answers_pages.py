"""Answers that prove the checks of section 1.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ADJACENT, HOLE, NO, FIRST, LOOKS = (
    "gives adjacent free slots",
    "finds a hole wherever it is",
    "says None when no hole is long enough",
    "takes the first hole that fits",
    "only looks",
)
INSIDE, BETWEEN, EXTREMES = (
    "measures the waste inside reservations",
    "measures the waste between reservations",
    "is zero when empty and when full",
)
PROMPT, AWAY, GROWS, BACK = (
    "takes the pages that the prompt fills",
    "turns away what does not fit",
    "gives each token one slot, and a page when one is full",
    "gives every page back",
)

BANKS = {
    "1.16": Bank(
        wrong=(
            Wrong("counts free slots, adjacent or not", {1: "run + (owner is None)"}, rejected_by=ADJACENT),
            Wrong("never leaves the run", {1: "run + 1"}, rejected_by=ADJACENT),
            Wrong("returns the end of the run", {3: "slot"}, rejected_by=ADJACENT),
            Wrong("off by one", {3: "slot - length"}, rejected_by=ADJACENT),
            Wrong("wants one slot more than asked", {2: "run > length"}, rejected_by=HOLE),
            Wrong(
                "stops before the last place",
                "def first_fit(slots, length):\n"
                "    for start in range(len(slots) - length):\n"
                "        if all(owner is None for owner in slots[start : start + length]):\n"
                "            return start\n"
                "    return None\n",
                rejected_by=HOLE,
            ),
            Wrong(
                "takes what is left at the end",
                "def first_fit(slots, length):\n"
                "    for start in range(len(slots)):\n"
                "        if all(owner is None for owner in slots[start : start + length]):\n"
                "            return start\n"
                "    return None\n",
                rejected_by=NO,
            ),
            Wrong(
                "best fit",
                "def first_fit(slots, length):\n"
                "    found, slot = [], 0\n"
                "    for owner, run in groupby(slots):\n"
                "        size = len(list(run))\n"
                "        if owner is None and size >= length:\n"
                "            found.append((size, slot))\n"
                "        slot += size\n"
                "    return min(found)[1] if found else None\n",
                rejected_by=FIRST,
            ),
            Wrong(
                "the last hole",
                "def first_fit(slots, length):\n"
                "    found = None\n"
                "    for start in range(len(slots) - length + 1):\n"
                "        if all(owner is None for owner in slots[start : start + length]):\n"
                "            found = start\n"
                "    return found\n",
                rejected_by=FIRST,
            ),
            Wrong(
                "marks the slots itself",
                "def first_fit(slots, length):\n"
                "    for start in range(len(slots) - length + 1):\n"
                "        if all(owner is None for owner in slots[start : start + length]):\n"
                "            slots[start : start + length] = ['new'] * length\n"
                "            return start\n"
                "    return None\n",
                rejected_by=LOOKS,
            ),
            Wrong(
                "-1 for no",
                "def first_fit(slots, length):\n"
                "    for start in range(len(slots) - length + 1):\n"
                "        if all(owner is None for owner in slots[start : start + length]):\n"
                "            return start\n"
                "    return -1\n",
                rejected_by=NO,
            ),
            Wrong(
                "enough in all is enough",
                "def first_fit(slots, length):\n"
                "    free = [slot for slot, owner in enumerate(slots) if owner is None]\n"
                "    return free[0] if len(free) >= length else None\n",
                rejected_by=ADJACENT,
            ),
        ),
        right=(
            Right("at least", {2: "run >= length"}),
            Right(
                "a window at every place",
                "def first_fit(slots, length):\n"
                "    places = range(len(slots) - length + 1)\n"
                "    return next((s for s in places if slots[s : s + length] == [None] * length), None)\n",
            ),
            Right(
                "search in text",
                "def first_fit(slots, length):\n"
                "    text = ''.join('.' if owner is None else 'x' for owner in slots)\n"
                "    at = text.find('.' * length)\n"
                "    return None if at < 0 else at\n",
            ),
        ),
    ),
    "1.17": Bank(
        wrong=(
            Wrong(
                "of all slots", {1: "1 - sum(written.values()) / len(owners) if num_held else 0.0"}, rejected_by=INSIDE
            ),
            Wrong("the used share", {1: "sum(written.values()) / num_held if num_held else 0.0"}, rejected_by=INSIDE),
            Wrong(
                "counts requests, not tokens",
                {1: "1 - len(written) / num_held if num_held else 0.0"},
                rejected_by=INSIDE,
            ),
            Wrong("slots, not a share", {1: "float(num_held - sum(written.values()))"}, rejected_by=INSIDE),
            Wrong("the free share", {2: "sum(holes) / len(owners) if holes else 0.0"}, rejected_by=BETWEEN),
            Wrong(
                "the longest hole of all slots",
                {2: "1 - max(holes) / len(owners) if holes else 0.0"},
                rejected_by=BETWEEN,
            ),
            Wrong("the average hole", {2: "1 - 1 / len(holes) if holes else 0.0"}, rejected_by=BETWEEN),
            Wrong("the smallest hole", {2: "1 - min(holes) / sum(holes) if holes else 0.0"}, rejected_by=BETWEEN),
            Wrong("divides by nothing held", {1: "1 - sum(written.values()) / num_held"}, rejected_by=EXTREMES),
            Wrong(
                "a full cache is all waste", {2: "1 - max(holes) / sum(holes) if holes else 1.0"}, rejected_by=EXTREMES
            ),
        ),
        right=(
            Right("counts the waste", {1: "(num_held - sum(written.values())) / max(1, num_held)"}),
            Right("sorts the holes", {2: "sum(sorted(holes)[:-1]) / sum(holes) if holes else 0.0"}),
        ),
    ),
    "1.19": Bank(
        wrong=(
            Wrong("sets aside as much again", {2: "2 * num_prompt"}, rejected_by=PROMPT),
            Wrong("leaves out the last token", {2: "num_prompt - 1"}, rejected_by=PROMPT),
            Wrong("asks in pages", {2: "-(-num_prompt // cache.block_size)"}, rejected_by=PROMPT),
            Wrong("one free page is enough", {1: "cache.num_free_blocks == 0"}, rejected_by=AWAY),
            Wrong(
                "takes without asking",
                "def admit(cache, num_prompt):\n"
                "    table = cache.open([0] * num_prompt)\n"
                "    cache.grow(table, num_prompt)\n"
                "    return table\n\n\n"
                "def write_token(cache, table):\n"
                "    cache.grow(table, table.num_tokens + 1)\n"
                "    return table.slot_of(table.num_tokens - 1)\n\n\n"
                "def finish(cache, table):\n"
                "    cache.close(table)\n",
                rejected_by=AWAY,
            ),
            Wrong("grows by nothing", {3: "table.num_tokens"}, rejected_by=GROWS),
            Wrong("grows by a page each time", {3: "table.num_tokens + cache.block_size"}, rejected_by=GROWS),
            Wrong(
                "the slot after the new token", {4: "table.block_ids[-1] * cache.block_size + table.num_tokens"}, GROWS
            ),
            Wrong("always the first slot", {4: "table.slot_of(0)"}, rejected_by=GROWS),
            Wrong("keeps the pages", {5: "table.block_ids.copy()"}, rejected_by=BACK),
            Wrong("clears the list, not the pages", {5: "table.block_ids.clear()"}, rejected_by=BACK),
        ),
        right=(
            Right(
                "by its own arithmetic",
                {4: "table.block_ids[-1] * cache.block_size + (table.num_tokens - 1) % cache.block_size"},
            ),
            Right("counts free slots", {1: "num_prompt > cache.num_free_blocks * cache.block_size"}),
            Right("the last of all slots", {4: "table.slots()[-1]"}),
            Right(
                "tries, and takes it back",
                "from twophase.core.errors import OutOfBlocksError\n\n\n"
                "def admit(cache, num_prompt):\n"
                "    table = cache.open([0] * num_prompt)\n"
                "    try:\n"
                "        cache.grow(table, num_prompt)\n"
                "    except OutOfBlocksError:\n"
                "        cache.close(table)\n"
                "        return None\n"
                "    return table\n\n\n"
                "def write_token(cache, table):\n"
                "    position = table.num_tokens\n"
                "    cache.grow(table, position + 1)\n"
                "    return table.slot_of(position)\n\n\n"
                "def finish(cache, table):\n"
                "    cache.close(table)\n",
            ),
        ),
    ),
}
