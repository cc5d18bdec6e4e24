"""Options of speculative decoding. The names follow vLLM's option of the same name."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError
from twophase.core.rules import apply_rules, one_of, option, rules_of, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding: draft the next tokens cheaply, verify all drafts in one step of the model.

    It changes the time that an output takes, and no token, greedy or seeded. (Up to rounding: a step that verifies adds
    up in another order, by which a log-probability may move by 1e-5 in fp32. A draw that falls between two tokens that
    closely, mostly in the tail of an untruncated distribution, may then take its neighbour.)

    Attributes:
        method: 'ngram' copies the continuation of an earlier occurrence of the newest tokens ("prompt lookup");
            'draft_model' uses a smaller model with the same vocabulary.
        num_speculative_tokens: Drafts that a sequence may have in a step, in [1, 32].
        prompt_lookup_max, prompt_lookup_min: Tokens that must agree for a lookup; the longest match is taken.
        model: The draft model, like `LLM`'s `model`; required for 'draft_model', and only allowed there.
        disable_when_losing: Measure the time per token with and without drafts, and run the faster variant. False:
            draft whenever there is room.

    Raises:
        ConfigError: An invalid option.
    """

    method: str = option("ngram", one_of("ngram", "draft_model"))
    num_speculative_tokens: int = option(4, whole_number(1, 32, "(later drafts are hardly ever accepted)"))
    prompt_lookup_max: int = option(3, whole_number(1))
    prompt_lookup_min: int = option(1, whole_number(1))
    model: str | None = None
    disable_when_losing: bool = True

    def __post_init__(self) -> None:
        apply_rules(self, rules_of(SpeculativeConfig), ConfigError)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min must not exceed prompt_lookup_max, got {self.prompt_lookup_min} > "
                f"{self.prompt_lookup_max}."
            )
        if (self.method == "draft_model") != (self.model is not None):
            raise ConfigError(
                f"method 'draft_model' requires a model, other methods take none; got method={self.method!r} with "
                f"model={self.model!r}."
            )
