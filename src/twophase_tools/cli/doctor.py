"""`twophase doctor`: what works on this machine, and the cure for what does not. See `checks.py` for what is looked at.

`diagnose()` is for programs; the first notebook shows its result.
"""

import argparse
import json
import sys
from typing import Any

from twophase_tools.cli.checks import CHECKS
from twophase_tools.cli.diagnosis import Check, Diagnosis, Finding


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="check this machine; every problem comes with its cure")
    parser.add_argument("--json", action="store_true", help="machine-readable verdict")
    parser.set_defaults(run=run)


def diagnose() -> Diagnosis:
    """Look at everything; takes a few seconds. Never raises: a check that fails is a finding itself."""
    return Diagnosis(tuple(finding for check in CHECKS for finding in _findings_of(check)))


def _findings_of(check: Check) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # a broken installation can raise anything, and that is what we are looking for
        name = check.__name__.removeprefix("check_").replace("_", " ")
        detail = f"could not be checked: {type(error).__name__}: {error}"
        return [Finding(name, "broken", detail, "Install again: pip install -r requirements.txt")]


def run(args: argparse.Namespace) -> int:
    """Print the verdict; 0 when the machine is usable, else 1."""
    diagnosis = diagnose()
    if args.json:
        print(json.dumps(diagnosis.to_dict(), indent=2))
    elif sys.stdout.isatty():
        _print_table(diagnosis)
    else:
        print(diagnosis.to_text())
    return 0 if diagnosis.is_usable else 1


def _print_table(diagnosis: Diagnosis) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # rich may be what is missing
        print(diagnosis.to_text())
        return
    styles = {"ok": "green", "advice": "yellow", "not run": "dim", "broken": "bold red"}
    table = Table("", "what", "found", title="twophase doctor", title_justify="left")
    for finding in diagnosis.findings:
        # Text, not str: details may hold brackets, which rich would read as markup.
        detail = Text(finding.detail)
        if finding.cure:
            detail.append(f"\ncure: {finding.cure}", style="italic")
        table.add_row(Text(finding.status, style=styles[finding.status]), Text(finding.name), detail)
    console = Console()
    console.print(table)
    console.print(Text(diagnosis.verdict, style="bold green" if diagnosis.is_usable else "bold red"))
