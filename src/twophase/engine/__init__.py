"""From requests to text, step by step: `Engine.step` is the life of a token."""
