"""The demonstration lab's exercises."""
