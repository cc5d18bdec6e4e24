"""Commands of several processes: the one that the user started runs itself again in each of them."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from twophase_tools.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from twophase_tools.launch import RankResult


def is_rank() -> bool:
    """Whether torchrun or `run_in_ranks` has started this process."""
    return "RANK" in os.environ


def run_in_ranks(args: argparse.Namespace, num_ranks: int) -> int:
    """Run this command in `num_ranks` processes that work together; rank 0 prints in our place. The exit code."""
    from twophase_tools.launch import run_local

    return exit_code_of(run_local("twophase_tools", num_ranks, args.argv, math.inf, show_ranks=(0,), check=False))


def check_shares(model: str, num_ranks: int, has_whole_experts: bool = False) -> None:
    """To be asked before processes are started: has each a share of the model?

    Raises:
        ConfigError, ModelFolderError: No; or there is no such model.
    """
    from twophase.model.config import load_config
    from twophase_features.model_store.prepare import resolve_model
    from twophase_features.parallel.sharding import Shard

    Shard(load_config(resolve_model(model)), 0, num_ranks, has_whole_experts)


def exit_code_of(ranks: "Sequence[RankResult]") -> int:
    """What the command as a whole ends with; prints what rank 0 has not said of a failure.

    0 if all ranks succeeded, and only then; 2 if one refused what was asked for, even if others were ended before
    they could refuse it too; what rank 0 said if it ended by itself; else 1.
    """
    from twophase_tools.launch import what_failed

    codes = [each.exit_code for each in ranks]
    if not any(code != 0 for code in codes):
        return EXIT_OK
    if EXIT_USAGE in codes:
        refusal = ranks[codes.index(EXIT_USAGE)]
        print(refusal.stderr, end="", file=sys.stderr)  # of rank 0: nothing, it was shown already
        return EXIT_USAGE
    if codes[0] == EXIT_BROKEN_PIPE:
        return EXIT_BROKEN_PIPE
    for each in ranks:
        print(each.stderr, end="", file=sys.stderr)
    if codes[0] is not None and codes[0] > 0:
        return codes[0]
    print(f"twophase: {what_failed(ranks)}.", file=sys.stderr)
    return EXIT_FAILED
