"""The page about a learner's engine speaks for the learner, and says whose each part is."""

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.own_parts import OwnParts, Part
from twophase_labs.your_engine.engine import Result
from twophase_labs.your_engine.result_page import write_page


def test_the_page_names_owners_and_goodput(tmp_path):
    exercises = Workbook.find().lab("05").exercises
    mine = OwnParts([
        Part("05", exercises["5.4"], {}, "", "a\nb", cell=3),
        Part("05", exercises["5.5"], {}, "its cell raises <Error>", ""),
    ])  # fmt: skip
    usual = Result(((1, 2), (3,)), ("a", "b"), 2.0, (0.1, 0.4), (0.01, 0.02), 5, 9, 0, 0)
    page = write_page(mine, {"the reference": usual, "your engine": usual}, (0.2, 0.05), tmp_path).read_text()
    assert "1 of 2 parts are mine" in page
    assert "<td>ngram_draft</td><td>mine</td><td>2</td>" in page
    assert "<td>verify</td><td>reference: its cell raises &lt;Error&gt;</td>" in page
    assert "<td>my engine</td><td>2 of 2</td><td>5</td><td>1.5</td><td>250 ms</td><td>0.50</td>" in page
    assert "your engine" not in page
    assert (tmp_path / "my_engine.png").stat().st_size > 1000
