"""What the compiler made of a kernel: a table of a few lines, and a picture of who reads what."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ptx_emulator import KernelReport
from ptx_emulator.traffic import SECTOR, GlobalAccess
from twophase_labs.kit.draw import done
from twophase_labs.machine.compiled import Compiled
from twophase_labs.machine.pictures import COLOURS, INK

CARDS = ("A100", "H100", "B200", "RTX 4090")


def tile_loads(report: KernelReport) -> list[GlobalAccess]:
    """The loads of K and V, in the order of the source: those of the two lines that ask for most."""
    loads = [access for access in report.global_accesses if not access.is_store]
    by_line: dict[str, int] = {}
    for access in loads:
        by_line[access.source] = by_line.get(access.source, 0) + access.bytes_asked
    k_and_v = sorted(by_line, key=by_line.__getitem__)[-2:]
    return [access for access in loads if access.source in k_and_v]


def show_compiled(compiled: Compiled, keys_per_turn: int) -> None:
    """Prints what to look at first: traffic of each load, instructions per key, registers, occupancy."""
    report = compiled.report
    if report is None:
        raise ValueError("the kernel was not launched: there is nothing to report")
    print(f"{'compiled for ' + report.target:<32} {'a thread':>9} {'requests':>9} {'sectors each':>13} {'at least':>9}")
    for access in report.global_accesses:
        what = _beginning(compiled.source_line(access.source) or access.source)
        sectors = f"{access.sectors_per_request:.1f}", f"{access.least_per_request:.1f}"
        print(f"{what:<32} {f'{access.thread_bytes} bytes':>9} {access.requests:>9} {sectors[0]:>13} {sectors[1]:>9}")
    loop = "no loop with matrix products"
    if report.loop:
        per_key = report.loop_instructions / keys_per_turn
        loop = f"a turn of the loop: {report.loop_instructions} instructions of each warp, {per_key:.1f} per key"
    print(f"{loop}; loads in flight: {report.bytes_in_flight:,} bytes at most")
    shared = f"{report.shared_bytes:,} bytes, {report.conflicts} bank conflicts"
    print(f"{report.registers} registers a thread, {report.stack_bytes} bytes spilled; shared memory: {shared}")
    print("room on a multiprocessor (as if the code for each card took the same registers and shared memory):")
    for card in CARDS:
        found = report.occupancy(card)
        room = f"{found.blocks} programs ({found.warps} of {found.max_warps} warps)"
        print(f"  {card:<8} {room}, limited by {found.limited_by}")


def show_beside(reports: Mapping[str, KernelReport]) -> None:
    """Prints a column for each kernel: what a load of K moves, and how many bytes are in flight, of a program and of
    all programs that an H100's multiprocessor (SM) has room for."""
    rows: dict[str, list[str]] = {}
    for report in reports.values():
        load, found = tile_loads(report)[0], report.occupancy("H100")
        moved = sum(access.sectors for access in report.global_accesses if not access.is_store)
        column = {
            "a load of K: sectors a request": f"{load.sectors_per_request:.1f}",
            "  at least": f"{load.least_per_request:.1f}",
            "sectors of all loads": f"{moved:,}",
            "bytes in flight in a program": f"{report.bytes_in_flight:,}",
            "registers a thread": f"{report.registers}",
            "shared memory, bytes": f"{report.shared_bytes:,}",
            "programs on an H100's SM": f"{found.blocks}",
            "  limited by": found.limited_by,
            "bytes in flight on the SM": f"{found.blocks * report.bytes_in_flight:,}",
        }
        for what, value in column.items():
            rows.setdefault(what, []).append(value)
    width = max(len(text) for text in (*reports, *(value for values in rows.values() for value in values))) + 2
    print(" " * 30 + "".join(f"{name:>{width}}" for name in reports))
    for what, values in rows.items():
        print(f"{what:30}" + "".join(f"{value:>{width}}" for value in values))


def _beginning(line: str, width: int = 32) -> str:
    return line if len(line) <= width else f"{line[: width - 4]} ..."


def draw_requests(accesses: Mapping[str, GlobalAccess]) -> Figure:
    """One instruction each: the sectors that the first request of every warp moves, and which of their bytes it uses.

    Sectors are drawn side by side, whatever lies between them.
    """
    figure, panels = plt.subplots(
        len(accesses), 1, figsize=(10, 0.8 + 1.5 * len(accesses)), facecolor="white", squeeze=False
    )
    most = max(len({place // SECTOR for place in _places(a, w)}) for a in accesses.values() for w in _warps(a))
    for axes, (name, access) in zip(panels[:, 0], accesses.items(), strict=True):
        _draw_access(axes, name, access, most)
    return done(figure)


def _warps(access: GlobalAccess) -> list[int]:
    return sorted({warp for warp, _ in access.example})


def _places(access: GlobalAccess, warp: int) -> list[int]:
    return [place for other, place in access.example if other == warp]


def _draw_access(axes: Axes, name: str, access: GlobalAccess, most: int) -> None:
    warps = _warps(access)
    for row, warp in enumerate(warps):
        places = _places(access, warp)
        sectors = sorted({place // SECTOR for place in places})
        for column, sector in enumerate(sectors):
            used = sorted({place for place in places if place // SECTOR == sector})
            for place in used:  # a thin white edge between threads
                axes.add_patch(
                    Rectangle(
                        (column * SECTOR + place % SECTOR, row), access.thread_bytes, 0.7,
                        facecolor=COLOURS[warp % len(COLOURS)], edgecolor="white", linewidth=0.8,
                    )
                )  # fmt: skip
            frame = Rectangle((column * SECTOR, row), SECTOR, 0.7, fill=False, edgecolor=INK, linewidth=1.2)
            axes.add_patch(frame)
    axes.set(xlim=(-2, most * SECTOR + 2), ylim=(len(warps), -0.2))
    axes.set_yticks([row + 0.35 for row in range(len(warps))], [f"warp {warp}" for warp in warps], color=INK)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    moved = f"{access.sectors_per_request:.0f} sectors a request, {access.efficiency:.0%} of their bytes used"
    axes.set_title(f"{name}: {moved}", fontsize=10, color=INK, loc="left")
