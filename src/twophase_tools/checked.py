"""Records that check themselves: each field that has a rule (`twophase.core.rules.option`) keeps it."""

from twophase.core.errors import ConfigError
from twophase.core.rules import apply_rules, rules_of


class Checked:
    """What frozen dataclasses inherit. Raises ConfigError, with field, rule and value, if a field breaks its rule."""

    def __post_init__(self) -> None:
        apply_rules(self, rules_of(type(self)), ConfigError)
