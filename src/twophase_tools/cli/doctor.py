"""`twophase doctor`: what works on this machine, and the cure for what does not. See `checks.py` for what is looked at.

`diagnose()` is for programs; the first notebook shows its result.
"""

import argparse
import html
import json
from dataclasses import asdict, dataclass
from typing import Any

from twophase_tools.cli.checks import CHECKS, Check, Finding, Status

COLOURS = {"ok": "#1a7f37", "advice": "#9a6700", "not run": "#57606a", "broken": "#cf222e"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings. `_repr_html_` makes notebooks show it as a table."""

    findings: tuple[Finding, ...]

    @property
    def is_usable(self) -> bool:
        """Whether nothing that is needed is broken."""
        return not self._num("broken")

    @property
    def verdict(self) -> str:
        """The whole in one line."""
        num_broken, num_advice = self._num("broken"), self._num("advice")
        remarks = f"{num_advice} remark{'s' * (num_advice != 1)}"
        if num_broken:
            problems = f"{num_broken} problem{'s' * (num_broken != 1)}"
            return f"Not ready: {problems} to cure" + (f", and {remarks}." if num_advice else ".")
        return f"Ready, with {remarks}." if num_advice else "Ready."

    def _num(self, status: Status) -> int:
        return sum(finding.status == status for finding in self.findings)

    def to_text(self) -> str:
        """Plain columns: status, name, detail; a cure on a line of its own; the verdict last."""
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.status:<8} {finding.name:<{width}}  {finding.detail}")
            if finding.cure:
                lines.append(f"{'':<8} {'':<{width}}  cure: {finding.cure}")
        return "\n".join([*lines, "", self.verdict])

    def to_html(self) -> str:
        """A small table without scripts or style sheets."""
        rows = []
        for finding in self.findings:
            cure = f"<br><b>Cure:</b> {html.escape(finding.cure)}" if finding.cure else ""
            rows.append(
                f'<tr><td style="color:{COLOURS[finding.status]};font-weight:bold">{finding.status}</td>'
                f'<td style="text-align:left">{html.escape(finding.name)}</td>'
                f'<td style="text-align:left">{html.escape(finding.detail)}{cure}</td></tr>'
            )
        return f"<p><b>{html.escape(self.verdict)}</b></p><table>{''.join(rows)}</table>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return self.to_text()

    def to_dict(self) -> dict[str, object]:
        """For JSON: `usable`, `verdict` and `findings`."""
        findings = [asdict(finding) for finding in self.findings]
        return {"usable": self.is_usable, "verdict": self.verdict, "findings": findings}


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
    print(json.dumps(diagnosis.to_dict(), indent=2) if args.json else diagnosis.to_text())
    return 0 if diagnosis.is_usable else 1
