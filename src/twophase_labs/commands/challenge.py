"""`twophase challenge`: the board of lab 4's open challenge, and a run for it."""

import argparse
import sys
from pathlib import Path
from typing import Any

DESCRIPTION = """The open challenge of lab 4: a scheduling policy, graded by the share of requests that keep both
promises on simulated traffic. `run` plays a file that defines Challenger(cost, slo), and my_limits if it likes, and
writes an entry; without it the board is printed. The same file and seeds give the same
score."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("challenge", help="lab 4's challenge: the board, or a run", description=DESCRIPTION)
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where entries are (default: beside the default model)"
    )
    parser.add_argument(
        "--seed", type=int, action="append", metavar="S", help="of a traffic; may be given again (default 0, 1, 2)"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    play = actions.add_parser("run", help="score a policy's file and enter it")
    play.add_argument("file", type=Path, metavar="POLICY.py")
    play.add_argument("--name", help="of the entry (default: the file's)")
    parser.set_defaults(run=run, action=None)


def run(args: argparse.Namespace) -> int:
    """Print the board, after a run if one is asked for.

    Raises:
        EntryError: The file does not play, or cannot be entered.
    """
    from twophase_features.model_store.prepare import cache_home
    from twophase_labs.scheduling import challenge, leaderboard

    folder, seeds = args.folder or cache_home() / "challenge", tuple(args.seed or challenge.SEEDS)
    entered = None
    if args.action == "run":
        entered = leaderboard.run(args.file, folder, args.name, seeds)
    entries, refused = leaderboard.read_board(folder, seeds)
    if entered is not None:
        place = 1 + sum(other.score > entered.score for other in entries)
        print(f"{entered.name}: {entered.score:.2f} %, place {place} of {len(entries)}")
    print(challenge.board(entries) if entries else f"no entries in {folder}")
    for why in refused:
        print(f"twophase challenge: not on the board: {why}", file=sys.stderr)
    return 0
