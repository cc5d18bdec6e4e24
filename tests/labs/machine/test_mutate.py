"""The mutation search makes the edits it should, and tells which of them a check accepts."""

from contextlib import nullcontext

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine import mutate, prove
from twophase_labs.machine.bank import wrong
from twophase_labs.machine.blanks import parse
from twophase_labs.machine.mutate import Edit, Searched, chosen, edits, search


def diffs(source, kind, names=("f",)):
    """What becomes of a cell whose answer is all of it."""
    return [edit.diff for edit in edits(source, [(0, len(source))], names) if edit.kind == kind]


@pytest.mark.parametrize(
    ("line", "kind", "after"),
    [
        ("return 5", "constants", ["return 6", "return 4", "return 0"]),
        ("return True", "constants", ["return False"]),
        ("return 'a'", "constants", []),
        ("return a < b", "comparisons", ["return a <= b", "return a > b"]),
        ("return a == b", "comparisons", ["return a != b", "return a is b"]),
        ("return a not in b", "comparisons", ["return a in b"]),
        ("return a if a is not None else b", "falsy_for_none", ["return a if a else b"]),
        ("return range(a)", "ends", ["return range(a + 1)", "return range(a - 1)"]),
        ("return a[:b]", "ends", ["return a[:b + 1]", "return a[:b - 1]"]),
        ("return range(a)", "caps", ["return range(min(a, 64))", "return range(min(a, 256))"]),
        ("return a.shape[-1]", "caps", ["return min(a.shape[-1], 64)", "return min(a.shape[-1], 256)"]),
        ("return a[:-1]", "caps", []),
        ("return a + b", "operators", ["return a - b"]),
        ("return a / b", "quotients", ["return a // b", "return round(a / b, 3)", "return a / (b + 1e-05)"]),
        ("return not a", "operators", ["return a"]),
        ("return a and b", "operators", ["return a or b"]),
        ("return a.sum(-1)", "operators", []),
        ("return a and b", "parts", ["return b", "return a"]),
        ("return max(0, a)", "parts", ["return 0", "return a"]),
        ("return a.reshape(2, -1)", "parts", ["return a.view(2, -1)"]),
        ("return a.clone()", "parts", ["return a"]),
        ("return a.to(torch.float64)", "precision", ["return a.to(torch.float32)"]),
        ("a.sort()", "dropped", ["pass"]),
        ("'text'", "dropped", []),
        ("return a", "names", ["return b"]),
        ("return zip(a, b, strict=True)", "constants", []),
    ],
)
def test_each_kind_of_edit(line, kind, after):
    found = diffs(f"def f(a, b):\n    {line}\n", kind)
    assert found == [f"{line} -> {one}" for one in after]


def test_a_remembering_function_answers_by_the_size_of_its_inputs():
    source = "def f(a, b):\n    return sum(a) * b\n"
    (memo,) = [edit for edit in edits(source, [], ("f",)) if edit.kind == "memo"]
    namespace = {}
    exec(memo.source, namespace)
    f = namespace["f"]
    assert [f([1, 2], 1), f([3, 4], 5), f([3, 4, 5], 1)] == [3, 3, 12]


@pytest.mark.parametrize("body", ["return a + 1, b + 1, 1 + 0", "a += 1\n    a += 1"])
def test_every_resulting_source_and_diff_comes_once_and_the_original_never(body):
    source = f"def f(a, b):\n    {body}\n"
    found = edits(source, [(0, len(source))], ("f",))
    assert len({edit.source for edit in found}) == len({edit.diff for edit in found}) == len(found)
    assert source.strip() not in {edit.source for edit in found}


def test_lines_that_are_given_stay():
    template = parse(
        "é = 'ü'\n\ndef f(a):\n    # BEGIN SOLUTION\n    b = a + 2\n    # END SOLUTION\n    return b + 7\n", "9.1"
    )
    source = template.filled()
    assert [source[a:b] for a, b in template.answer_spans()] == ["b = a + 2"]
    found = edits(source, template.answer_spans(), ("f",))
    assert {edit.diff for edit in found if edit.kind == "constants"} == {f"b = a + 2 -> b = a + {n}" for n in (3, 1, 0)}
    assert not any(edit.diff.startswith("return") for edit in found)


def test_few_are_chosen_from_every_kind_and_always_the_same():
    made = [Edit(kind, f"{kind} {i}", "") for kind in "abc" for i in range(20)]
    few = chosen(made, 12)
    assert few == chosen(list(reversed(made)), 12)
    assert [edit.kind for edit in few] == list("abc") * 4
    assert len(chosen(made[:6], 12)) == 6


SAME = "counts = torch.arange(1, x.shape[-1] + 1) -> counts = torch.arange(1, totals.shape[-1] + 1)"
CAPPED = "counts = torch.arange(1, x.shape[-1] + 1) -> counts = torch.arange(1, min(x.shape[-1], 64) + 1)"
COMMAND = ["--root", str(DEMO.root), "--package", DEMO.package, "--workers", "1", "--exercise"]
REJECTED = "totals = x.cumsum(-1) -> totals = x.cumsum(-2)"


def test_the_command_fails_if_anything_survives(grader, capsys, monkeypatch):
    monkeypatch.setattr(prove, "Grader", lambda *args: nullcontext(grader))
    assert prove.main(["--mutate", *COMMAND, "1.8", "--edits", "4"]) == 0
    assert "1.8: 2 edits: 2 rejected, 0 equivalent, 0 survive" in capsys.readouterr().out
    assert prove.main(["--mutate", *COMMAND, "1.9"]) == 2
    monkeypatch.setattr(mutate, "search", lambda *args: Searched("1.8", 4, 3, 0, ("a -> b",), (), ()))
    assert prove.main(["--mutate", *COMMAND, "1.8"]) == 1


def test_survivors_and_equivalents(grader):
    found = search(grader, LAB, "1.1")
    assert CAPPED in found.survivors  # no case of the demonstration is that long
    assert found.equivalent == (f"{SAME}: the sums have the shape of what they sum",)
    assert (found.errors, found.num_untried) == ((), 0)
    assert found.num_tried == found.num_rejected + len(found.survivors) + 1
    assert CAPPED in str(found)
    assert SAME not in str(found)


def test_an_entry_that_no_longer_holds_is_an_error(grader, monkeypatch):
    monkeypatch.setattr(mutate, "equivalents", lambda lab: {"1.1": {"gone": ("b / b",), "no": ("cumsum(-2)",)}})
    found = search(grader, LAB, "1.1")
    assert SAME in found.survivors
    assert set(found.errors) == {
        "names no edit: b / b",
        f"is not equivalent, for the check rejects it: {REJECTED}",
    }


@pytest.mark.full
def test_answers_whose_verdict_luck_decides_are_found(grader, monkeypatch, capsys):
    half = "self.value = start + int(torch.rand(()) < 0.5)"
    sometimes = wrong("sometimes", "self.value = start", half, by="counts up")
    monkeypatch.setitem(vars(LAB), "banks", {"1.8": (sometimes, wrong("never", {1: "0"}, by="counts up"))})
    (row,) = prove.lucky(grader, LAB, 6, "1.8")
    assert (row.answer, row.title, row.holds) == ("wrong", "sometimes", False)
    assert {said.partition(" (")[0] for said in row.got.split("; ")} == {"passed", "failed: counts up"}
    monkeypatch.setattr(prove, "Grader", lambda *args: nullcontext(grader))
    assert prove.main(["--seeds", "1", *COMMAND, "1.8"]) == 0
    assert "0 answers pass or fail by luck with 1 seeds; 0 fail differently" in capsys.readouterr().out
