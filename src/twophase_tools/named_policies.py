"""Policies by name, for command lines: 'chunked:max_tokens=256'."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from twophase.core.errors import ConfigError
from twophase.core.rules import checked, rules_of
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy

POLICIES: Mapping[str, type] = {
    "priority": PriorityPolicy,
    "ageing": AgeingPolicy,
    "chunked": ChunkedPrefillPolicy,
    "continuous": ContinuousPolicy,
    "prefill-first": PrefillFirstPolicy,
    "static": StaticPolicy,
    "dynamic": DynamicPolicy,
    "deadline": DeadlinePolicy,
    "rotating": RotatingPolicy,
    "fair": FairPolicy,
}


def policy_from_text(text: str) -> Policy:
    """The policy for 'name' or 'name:parameter=number,...'; the parameters are the class's fields.

    Raises:
        ConfigError: No such policy or parameter, a parameter too few, or an invalid value.
    """
    name, _, rest = text.partition(":")
    if name not in POLICIES:
        raise ConfigError(f"no policy is called {name!r}; there are {', '.join(map(usage, POLICIES))}.")
    values = dict(_parameter(name, part) for part in rest.split(",") if part)
    lacking = [f.name for f in _parameters(name) if f.default is MISSING and f.name not in values]
    if lacking:
        raise ConfigError(f"policy {name!r} needs {' and '.join(lacking)}: write {usage(name)}.")
    rules = rules_of(POLICIES[name])
    try:
        return POLICIES[name](**{key: checked(key, value, rules[key], ConfigError) for key, value in values.items()})
    except ConfigError as error:
        raise ConfigError(f"policy {name!r}: {error}") from error


def usage(name: str) -> str:
    """'dynamic:batch_size=N,timeout_s=N'."""
    parameters = ",".join(f"{field.name}=N" for field in _parameters(name))
    return f"{name}:{parameters}" if parameters else name


def _parameters(name: str) -> list[Field[Any]]:
    """A policy's parameters, without its counters."""
    return [field for field in fields(POLICIES[name]) if field.init]


def _parameter(name: str, part: str) -> tuple[str, int | float]:
    """A parameter and its number; the policy's own rule says which numbers it takes."""
    key, _, text = part.partition("=")
    if key not in {field.name for field in _parameters(name)}:
        raise ConfigError(f"policy {name!r} has no parameter {key!r}: write {usage(name)}.")
    try:
        return key, float(text) if set(text) & set(".en") else int(text)
    except ValueError as error:
        raise ConfigError(f"{key} of policy {name!r} must be a number, got {text!r}.") from error
