"""A grade to read: a table in a terminal, a page for a screen or a printer."""

from collections.abc import Sequence
from html import escape

from rich.table import Table
from rich.text import Text

from twophase_labs.machine.cards import LOOKS, picture_html, with_code
from twophase_labs.machine.grading.files import plain
from twophase_labs.machine.grading.folder import Submission, counted
from twophase_labs.machine.grading.grade import DISCLAIMER, Report, Result


def table(report: Report) -> Table:
    """Exercise, points, verdict, reason."""
    title = Text(f"{plain(report.path)}: {score(report)}")  # a Text has no markup
    made = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("", "exercise", "points", "verdict", "why"):
        made.add_column(heading, justify="right" if heading == "points" else "left", overflow="fold")
    for result in report.results:
        mark, word, colour = LOOKS[result.verdict.verdict]
        why = Text("" if result.verdict.verdict in ("passed", "not_attempted") else result.verdict.reason)
        for note in remarks(result):
            why.append(("\n" if why else "") + note, style="dim")
        points = f"{result.points} of {result.exercise.points}"
        title = Text(result.exercise.title).append(" (extra)" * result.exercise.is_extra, style="dim")
        made.add_row(result.exercise.id, title, points, Text(f"{mark} {word}", style=colour), why)
    return made


def score(report: Report) -> str:
    missing = report.points_not_run_here
    return (
        f"{report.points} of {report.max_points} points"
        + (f" ({missing} not run here)" if missing else "")
        + (f", {report.extra_points} of {report.max_extra_points} extra" if report.extra else "")
    )


def tally(report: Report) -> list[tuple[str, int]]:
    return [
        ("exercises", len(report.results)),
        ("attempted", report.num_attempted),
        ("passed", report.count("passed")),
        ("by reference", report.count("by_reference")),
        ("solution looked at", sum(result.revealed for result in report.results)),
        ("not run here", report.count("not_run_here")),
    ]


def remarks(result: Result) -> list[str]:
    return [*result.verdict.notes, *["the solution was looked at"] * result.revealed]


STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #667085; --line: #d9dee7; --page: #fff; --soft: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #9aa4b5; --line: #39414f; --page: #14181f; --soft: #1d232d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.2rem 1.4rem; }
header { display: flex; justify-content: space-between; align-items: flex-end; gap: 1.5rem; flex-wrap: wrap; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
.file { color: var(--dim); overflow-wrap: anywhere; }
.score { text-align: right; font-size: 2.1rem; font-weight: 650; white-space: nowrap; line-height: 1.1; }
.score small { font-size: 1rem; font-weight: 400; color: var(--dim); }
.unseen { color: var(--dim); font-size: .95rem; font-weight: 400; }
.bar { height: 8px; border-radius: 4px; background: var(--line); margin: 1rem 0; overflow: hidden; display: flex; }
.bar i { display: block; background: #2e7d32; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.tally { display: flex; flex-wrap: wrap; gap: .5rem 1.6rem; margin: 0 0 1.4rem; color: var(--dim); }
.tally b { color: var(--ink); font-variant-numeric: tabular-nums; }
.warning { border-left: 4px solid #b26a00; background: var(--soft); padding: .5rem .9rem; margin: 0 0 1rem; }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; color: var(--dim); font-weight: 500; font-size: .85rem; }
th, td { padding: .55rem .7rem .55rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:last-child, th:last-child { padding-right: 0; }
tr { break-inside: avoid; }
.id, .points { white-space: nowrap; font-variant-numeric: tabular-nums; }
.points { text-align: right; padding-right: 1.2rem; }
.verdict { white-space: nowrap; font-weight: 600; }
.why { overflow-wrap: anywhere; }
.dim { color: var(--dim); font-size: .9rem; }
footer { margin-top: 1.6rem; color: var(--dim); font-size: .85rem; }
section + section { margin-top: 3.5rem; break-before: page; }
@media (prefers-color-scheme: dark) {
  .verdict { filter: brightness(1.55); }
  img { filter: invert(.92) hue-rotate(180deg) brightness(1.35) saturate(1.1); }
}
@media (max-width: 40rem) { .id, .points, .verdict { white-space: normal; } th, td { padding-right: .5rem; } }
@media print {
  :root { --ink: #000; --dim: #444; --line: #bbb; --page: #fff; --soft: #fff; }
  .verdict { filter: none; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
}
"""


def page(submissions: Sequence[Submission]) -> str:
    """A self-contained HTML page with a section per graded submission."""
    graded = [(s.report, s.flags(submissions)) for s in counted(submissions) if s.report is not None]
    ungraded = [f"{s.learner}: not graded: {s.problem}" for s in submissions if s.report is None]
    title = graded[0][0].lab if len(graded) == 1 else f"{len(graded)} notebooks"
    sections = "".join(f'<p class="warning">{escape(text)}</p>' for text in ungraded)
    sections += "".join(_section(report, flags) for report, flags in graded)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Report card: {escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{sections}<footer>{escape(DISCLAIMER)}</footer></main></body></html>\n"
    )


def _section(report: Report, flags: Sequence[str]) -> str:
    number, _, name = report.lab.partition("_")
    share = 100 * report.points / max(1, report.max_points)
    counts = "".join(f"<span><b>{count}</b> {escape(label)}</span>" for label, count in tally(report))
    counts += f"<span>isolation: {escape(report.isolation)}</span>"
    warnings = "".join(f'<p class="warning">{with_code(text)}</p>' for text in report.warnings)
    warnings += "".join(f'<p class="warning">Look twice: {escape(text)}</p>' for text in flags)
    rows = "".join(_row(result) for result in report.results)
    unseen = report.points_not_run_here
    note = f'<div class="unseen">{unseen} of them not run here</div>' if unseen else ""
    if report.extra:
        note += f'<div class="unseen">{report.extra_points} of {report.max_extra_points} extra points</div>'
    return (
        f"<section><header><div><h1>Lab {escape(number)}: {escape(name.replace('_', ' '))}</h1>"
        f'<div class="file">{escape(plain(report.path))}</div></div>'
        f'<div class="score">{report.points} <small>of {report.max_points} points</small>{note}</div></header>'
        f'<div class="bar"><i style="width:{share:.1f}%"></i></div><div class="tally">{counts}</div>{warnings}'
        '<table><thead><tr><th class="id"></th><th>Exercise</th><th class="points">Points</th><th>Verdict</th>'
        f"<th>Why</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _row(result: Result) -> str:
    verdict = result.verdict
    mark, word, colour = LOOKS[verdict.verdict]
    says_it_all = verdict.verdict in ("passed", "not_attempted")
    lines = [] if says_it_all else [with_code(verdict.reason)]
    lines += [] if says_it_all else [f'<span class="dim">{with_code(detail)}</span>' for detail in verdict.details]
    lines += [f"<em>Hint: {with_code(verdict.hint)}</em>"] if verdict.hint else []
    lines += [f'<span class="dim">{escape(note)}</span>' for note in remarks(result)]
    extra = ' <span class="dim">extra</span>' * result.exercise.is_extra
    return (
        f'<tr><td class="id">{escape(result.exercise.id)}</td><td>{escape(result.exercise.title)}{extra}</td>'
        f'<td class="points">{result.points} / {result.exercise.points}</td>'
        f'<td class="verdict" style="color:{colour}">{mark} {escape(word)}</td>'
        f'<td class="why">{"<br>".join(lines)}{picture_html(verdict.picture)}</td></tr>'
    )
