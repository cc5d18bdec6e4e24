"""The command `twophase`. `main.py` knows the arguments; each command is a module, imported when it runs."""

__all__ = ["doctor"]
