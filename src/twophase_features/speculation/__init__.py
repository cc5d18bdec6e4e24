"""Speculative decoding: tokens are drafted cheaply, and verified together in one step."""
