"""Conversations: a model's chat template turns messages into a prompt.

Public: `conversation` (messages to text and token ids), `template` (the template of a model folder), `rendering` (a
template's program), `special_text` (special tokens written out in a message).
"""
