"""What `twophase doctor` finds: findings, and the verdict that they make together."""

import html
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "advice", "not run", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict.

    Attributes:
        name: What was looked at.
        status: 'ok'; 'advice' works, but could be better; 'not run' could not be tried on this machine; 'broken' is
            needed and does not work.
        detail: What was found.
        cure: What to do about it; always given for 'advice' and 'broken'.
    """

    name: str
    status: Status
    detail: str
    cure: str | None = None


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
        colours = {"ok": "#1a7f37", "advice": "#9a6700", "not run": "#57606a", "broken": "#cf222e"}
        rows = []
        for finding in self.findings:
            cure = f"<br><b>Cure:</b> {html.escape(finding.cure)}" if finding.cure else ""
            rows.append(
                f'<tr><td style="color:{colours[finding.status]};font-weight:bold">{finding.status}</td>'
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


Check = Callable[[], Iterable[Finding]]
