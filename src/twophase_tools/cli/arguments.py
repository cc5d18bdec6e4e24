"""What an option's value may be. A type turns a word of the command line into a value, or tells argparse the rule."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twophase.core.errors import ConfigError, InvalidRequestError
from twophase_features.model_store.prepare import DEFAULT_MODEL

Options = ArgumentParser | _ArgumentGroup
MOST = 10_000_000  # of blocks, say: the bookkeeping of so many fits into a few GB


def whole(least: int | None = None, most: int = MOST) -> Callable[[str], int]:
    """A whole number in [least, most]. Without `least`, what uses the number tells how small it may be."""

    def parse(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise ArgumentTypeError(f"must be a whole number, got {word[:40]!r}") from None
        if least is not None and value < least:
            raise ArgumentTypeError(f"must be at least {least}, got {value}")
        if value > most:
            raise ArgumentTypeError(f"must be at most {most}, got {word[:40]}")
        return value

    return parse


def text(word: str) -> str:
    """Text that can be written as UTF-8. A word in another encoding reaches Python as lone surrogates."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentTypeError("must be UTF-8 text") from None
    return word


def read_text(option: str, file: str) -> str:
    """The text of a file that an option names; raises ConfigError if there is none."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} must name a file of UTF-8 text; {file!r} is none ({error.reason}).") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{option} must name a file that can be read, got {file!r}: {reason}.") from error


def read_standard_input() -> str:
    """All of it; raises InvalidRequestError if it is closed, or no text."""
    if sys.stdin is None:
        raise InvalidRequestError("standard input is closed; give the prompt as an argument, or a file with `< FILE`.")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input must be UTF-8 text ({error.reason}).") from error
    except OSError as error:
        raise InvalidRequestError(f"standard input cannot be read: {error.strerror}.") from error


def say(line: str) -> None:
    """Progress, which standard output has no place for."""
    print(line, file=sys.stderr, flush=True)


def add_model(parser: Options) -> None:
    """`--model`: a folder, a hub id, or the default model."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="'%(default)s' (default), a folder, or a hub id")


def add_options(parser: Options, *rows: tuple[str, Callable[[str], Any], str, str, Any]) -> None:
    """Options of one value: flag, type, what stands for the value, what it says, and its default."""
    for flag, kind, metavar, said, default in rows:
        parser.add_argument(flag, type=kind, metavar=metavar, help=said, default=default)


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable results")
