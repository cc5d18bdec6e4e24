"""Prompts whose tokens nobody else uses: a document and a question."""

DOCUMENT, QUESTION = 480, 16


def prompt_of(first_id: int, num_tokens: int) -> list[int]:
    """Token ids that nobody else uses; what they say makes no difference to the time."""
    return list(range(first_id, first_id + num_tokens))
