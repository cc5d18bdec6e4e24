"""Conversations: a model's chat template turns messages into a prompt."""
