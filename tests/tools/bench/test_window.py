"""`twophase bench window` runs from end to end and shows what it is for; its figures on a small text, not its times."""

import json

import pytest

from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase_tools.bench import window as subject


@pytest.mark.full
def test_a_small_run_shows_bounded_blocks_and_a_forgotten_needle(smollm2_folder, monkeypatch):  # noqa: F811
    prose = subject.prose()[:1800]
    monkeypatch.setattr(subject, "prose", lambda: prose)
    report = subject.bench_window(
        str(smollm2_folder), device="cpu", window=128, num_tokens=640, num_steps=4, say=lambda line: None
    )
    full, sinks, none = report.views
    assert full.blocks[-1] == 40
    assert max(sinks.blocks) <= 1 + 9
    assert max(none.blocks) <= 9
    assert full.far_needle + 2 < sinks.far_needle, "what left the window was not forgotten"
    assert sinks.near_needle < sinks.far_needle - 2
    assert full.perplexity < sinks.perplexity < none.perplexity
    assert all(view.step_s > 0 for view in report.views)
    assert len(report.to_text().splitlines()) == 7
    assert json.loads(json.dumps(report.to_dict()))["views"][1]["num_sinks"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_sinks": 0}, "at least 1, got 0"), ({"num_tokens": 300}, "a text of 300 tokens shows little")],
)
def test_what_would_show_nothing_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        subject.bench_window("nobody opens it", say=print, **options)
