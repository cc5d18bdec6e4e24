"""Policies by name."""

import re

import pytest

from twophase.core.errors import ConfigError
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_tools.cli.engine_options import POLICY_HELP
from twophase_tools.cli.main import main
from twophase_tools.named_policies import POLICIES, policy_from_text, usage


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("priority", PriorityPolicy()),
        ("ageing:patience_s=2.5", AgeingPolicy(patience_s=2.5)),
        ("chunked:max_tokens=64", ChunkedPrefillPolicy(max_tokens=64)),
        ("dynamic:batch_size=4,timeout_s=0.5", DynamicPolicy(batch_size=4, timeout_s=0.5)),
    ],
)
def test_a_text_stands_for_a_policy(text, policy):
    assert policy_from_text(text) == policy


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_made_as_its_usage_says(name):
    assert isinstance(policy_from_text(usage(name).replace("=N", "=3")), POLICIES[name])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fifo", r"no policy is called 'fifo'.*chunked:max_tokens=N"),
        ("chunked", r"needs max_tokens: write chunked:max_tokens=N"),
        ("chunked:size=3", r"has no parameter 'size'"),
        ("chunked:max_tokens=many", r"must be a number, got 'many'"),
        ("chunked:max_tokens=0", r"max_tokens must be a whole number >= 1, got 0"),
        ("prefill-first:max_stalled_steps=0", r"max_stalled_steps must be a whole number >= 1, or None, got 0"),
        ("dynamic:batch_size=2,timeout_s=inf", r"timeout_s must be a finite number of seconds, at least 0, got inf"),
        ("ageing:patience_s=nan", r"patience_s must be a finite number of seconds, got nan"),
    ],
)
def test_what_stands_for_none_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        policy_from_text(text)


@pytest.mark.parametrize(
    "command", ["simulate --hardware h100 --rate 50 --requests 60", "bench serve --workload quick"]
)
def test_the_command_line_takes_them(command, capsys):
    assert main([*command.split(), "--policy", "fifo"]) == 2
    assert "no policy is called 'fifo'" in capsys.readouterr().err


def test_the_help_names_every_policy_and_nothing_else():
    shown = [part.strip() for part in re.split(r",\s+", POLICY_HELP.replace(" (default)", ""))]
    assert {text.partition(":")[0] for text in shown} == set(POLICIES)
    for text in shown:
        policy_from_text(text.replace("=N", "=3"))
