"""8.10: what each request of a step costs."""

from typing import Any

from twophase_labs.machine.checks import Draw, compare, listed, number, reject, shown, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.operations.machines import Machine

SHARES = exercise(
    "8.10", "Who pays for a step?", "share_step", points=3, minutes=14, lines=10, difficulty=2, time_limit_s=20
)
SHARES.objective = "split the time of a step among its requests, so that nothing is lost"
SHARES.hints = (
    "Count for each chunk what it alone would take: its arithmetic, its K and V, and its part of the weights. Then "
    "scale all of them so that they add up to the step.",
    "A chunk (start, count) computes `count` tokens. Its token at position p meets p + 1 keys: together start * "
    "count + count * (count + 1) / 2. It reads start + count keys and writes count.",
    "alone = []\n"
    "for start, count in chunks:\n"
    "    keys = ...\n"
    "    flops = machine.flops_per_token * ... + machine.flops_per_key * keys\n"
    "    moved = machine.weight_bytes / ... + machine.kv_bytes_per_token * ...\n"
    "    alone.append(flops / ... + moved / ...)\n"
    "return [step_s * ... for seconds in alone]",
)

Chunk = tuple[int, int]


def by_the_book(chunks: list[Chunk], step_s: float, machine: Any) -> list[float]:
    """Each chunk's seconds if it were alone with its part of the weights, scaled; pairs counted one by one."""
    alone = []
    for start, count in chunks:
        keys = sum(position + 1 for position in range(start, start + count))
        flops = machine.flops_per_token * count + machine.flops_per_key * keys
        moved = machine.weight_bytes / len(chunks) + machine.kv_bytes_per_token * (start + count + count)
        alone.append(flops / machine.flops_per_s + moved / machine.bytes_per_s)
    total = sum(alone)
    return [step_s * seconds / total for seconds in alone]


def drawn_machine(draw: Draw) -> Any:
    scale = draw.integer(1, 9)
    return Machine(
        flops_per_s=1e12 * draw.integer(50, 500),
        bytes_per_s=1e9 * draw.integer(200, 3000),
        weight_bytes=scale * 2_000_000_000,
        flops_per_token=scale * 2_000_000_000,
        flops_per_key=scale * 65_536,
        kv_bytes_per_token=scale * 16_384,
    )


def machine_like(**values: float) -> Any:
    plain_one = {
        "flops_per_s": 1.0, "bytes_per_s": 1.0, "weight_bytes": 0, "flops_per_token": 0, "flops_per_key": 0,
        "kv_bytes_per_token": 0,
    }  # fmt: skip
    return Machine(**(plain_one | values))  # type: ignore[arg-type]


def shared(answer: Any, chunks: list[Chunk], step_s: float, machine: Any) -> list[float]:
    got = listed(answer.share_step(list(chunks), step_s, machine))
    seconds = [number(each) for each in got] if isinstance(got, list | tuple) else None
    if seconds is None or None in seconds:
        reject(f"share_step returned {shown(got)}", "It returns a list with the seconds of each chunk.")
    if len(seconds) != len(chunks):
        reject(f"share_step returned {len(seconds)} numbers for {len(chunks)} chunks")
    return [float(each or 0) for each in seconds]


def agrees(answer: Any, chunks: list[Chunk], step_s: float, machine: Any) -> None:
    expected = by_the_book(chunks, step_s, machine)
    got = shared(answer, chunks, step_s, machine)
    compare(got, expected, what=f"the seconds of {chunks}", axes=("chunk",), rtol=1e-6, atol=0)


@SHARES.check("adds up to the step")
def adds_up(answer: Any, draw: Draw) -> None:
    """price x time is what is paid: the shares of a step add up to its seconds, whatever its chunks are."""
    for _ in range(4):
        chunks = [(draw.integer(0, 3000), draw.choice([1, 1, 1, 64, 512])) for _ in range(draw.integer(1, 30))]
        step_s = draw.integer(5, 200) / 1000
        got = shared(answer, chunks, step_s, drawn_machine(draw))
        if abs(sum(got) - step_s) > 1e-9:
            reject(f"the step took {step_s:g} s, and the shares add up to {sum(got):.6g} s", f"{len(chunks)} chunks")
        if min(got) < 0:
            reject(f"a share is below zero: {min(got):.3g} s")


@SHARES.check("lets a single chunk pay all")
def one_chunk_pays_all(answer: Any, draw: Draw) -> None:
    """Alone in a step: all of it is its own."""
    step_s = draw.integer(5, 200) / 1000
    agrees(answer, [(draw.integer(0, 900), 1)], step_s, drawn_machine(draw))


@SHARES.check("lets equal chunks pay alike")
def equals_pay_alike(answer: Any, draw: Draw) -> None:
    """Equal chunks, equal shares."""
    chunk = (draw.integer(1, 900), 1)
    agrees(answer, [chunk] * draw.integer(2, 20), 0.06, drawn_machine(draw))


@SHARES.check("shares the weights by chunks")
def weights_are_shared(answer: Any, draw: Draw) -> None:
    """The step reads the weights once, for all of its chunks; each would have read them once by itself. So each
    pays the same part of them, however many tokens it has."""
    # Where only the weights cost anything, each chunk pays the same: it would read them alone, too.
    agrees(answer, [(100, 1), (0, 512), (900, 1)], 0.06, machine_like(weight_bytes=10**9))


@SHARES.check("counts each chunk's own arithmetic")
def arithmetic_is_their_own(answer: Any, draw: Draw) -> None:
    """flops_per_token for each of the chunk's tokens."""
    agrees(answer, [(100, 1), (0, 512), (900, 1)], 0.06, machine_like(flops_per_token=7))


@SHARES.check("counts the keys that each query meets")
def keys_are_counted(answer: Any, draw: Draw) -> None:
    """The token at position p meets p + 1 keys. Of a chunk that starts at 4 and has 2 tokens: 5 + 6."""
    # Attention alone: a query at position p meets p + 1 keys.
    agrees(answer, [(0, 3), (9, 1), (4, 2)], 0.06, machine_like(flops_per_key=1))
    agrees(answer, [(draw.integer(0, 40), draw.integer(1, 30)) for _ in range(5)], 0.06, machine_like(flops_per_key=3))


@SHARES.check("counts K and V read and written")
def memory_is_their_own(answer: Any, draw: Draw) -> None:
    """A chunk reads the K and V of start + count tokens once and writes those of count."""
    # K and V alone: of all keys read once, and of the new ones written.
    agrees(answer, [(0, 3), (9, 1), (4, 2)], 0.06, machine_like(kv_bytes_per_token=1))


@SHARES.check("is right for any step", num_chunks=(2, 40, 130))
def any_step(answer: Any, draw: Draw, num_chunks: int) -> None:
    """Seconds, not bytes and FLOPs: divide each by what the machine does in a second before you add them."""
    chunks = [(draw.integer(0, 4000), draw.choice([1, 1, 5, 128, 512])) for _ in range(num_chunks)]
    agrees(answer, chunks, draw.integer(5, 200) / 1000, drawn_machine(draw))


@SHARES.check("leaves its chunks alone")
def changes_nothing(answer: Any, draw: Draw) -> None:
    """Do not change the list."""
    chunks = [(10, 1), (0, 64)]
    with unchanged(chunks=chunks):
        answer.share_step(chunks, 0.06, drawn_machine(draw))
