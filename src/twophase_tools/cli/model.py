"""`twophase model prepare | path | verify`."""

import argparse
import sys
from typing import Any

from twophase.core.errors import ModelFolderError
from twophase_features.model_store import prepare


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("model", help="the default model on disk")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("prepare", help="write the default model's folder, once; does nothing when it is there")
    actions.add_parser("path", help="print the default model's folder")
    actions.add_parser("verify", help="compare the default model's files with their recorded checksums")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do the action; the folder goes to stdout, everything else to stderr, so that `$(twophase model path)` works.

    Raises:
        ModelFolderError: The model cannot be prepared, or its files are not what was written.
    """
    folder = prepare.default_model_dir()
    if args.action == "prepare":
        prepare.prepare_default_model(progress=True)
    elif args.action == "verify":
        if not folder.exists():
            raise ModelFolderError(f"{folder} does not exist yet: run `twophase model prepare`.")
        prepare.verify()
        print("Every file is what was written.", file=sys.stderr)
    print(folder)
    return 0
