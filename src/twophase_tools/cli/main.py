"""The command line: arguments, dispatch, and what happens when something goes wrong.

Nothing heavy is imported here, so `twophase --help` answers at once; what a command needs is imported when it runs.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from twophase import __version__
from twophase.core.errors import (
    BackendUnavailableError,
    ConfigError,
    InvalidRequestError,
    ModelFolderError,
    TwophaseError,
)
from twophase_tools.cli import bench, doctor, generate, model, plan, profile, serve, simulate
from twophase_tools.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

USAGE_ERRORS = (BackendUnavailableError, ConfigError, InvalidRequestError, ModelFolderError)

COMMANDS = "twophase.commands"  # entry points: modules with `add_parser`, of packages above this one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors become one message on stderr, never a traceback."""
    try:
        _prepare_streams()
        args = build_parser().parse_args(argv)
        args.argv = sys.argv[1:] if argv is None else list(argv)
        exit_code: int = args.run(args)
        sys.stdout.flush()
        return exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # whoever read it has gone (`twophase ... | head`)
        return EXIT_BROKEN_PIPE
    except TwophaseError as error:
        _complain(error)
        return EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_FAILED
    except OSError as error:
        _complain(error)
        return EXIT_FAILED
    except MemoryError as error:
        _complain(f"not enough memory ({error}); ask for less, such as fewer --num-kv-blocks.")
        return EXIT_FAILED


def _prepare_streams() -> None:
    """Any text can be printed, and no print goes astray.

    A character that the terminal's encoding lacks is printed as an escape. Without standard error, what is printed
    there would go to standard output.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the end)
    if sys.stdout is None:
        raise ConfigError("standard output is closed, and the results go there; `> /dev/null` throws them away.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(error: Exception | str) -> None:
    print(f"twophase: {error}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except (AttributeError, OSError):  # closed, or full: that is what is complained of
        _forget_output()


def _forget_output() -> None:
    """Python flushes standard output once more at exit: let that go nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twophase", description="LLM inference from pages: run it, look inside it, measure it."
    )
    parser.add_argument("--version", action="version", version=f"twophase {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (doctor, model, generate, bench, simulate, plan, profile, serve):
        module.add_parser(commands)
    for command in sorted(entry_points(group=COMMANDS), key=lambda command: command.name):
        command.load().add_parser(commands)
    return parser
