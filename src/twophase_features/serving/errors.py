"""Errors of requests to an engine in a thread."""

from twophase.core.errors import TwophaseError


class EngineDeadError(TwophaseError):
    """The thread that ran the engine's steps has ended, by an exception or by `close`; nothing is served any more."""


class QueueFullError(TwophaseError):
    """Too many requests wait already. Try again later, or elsewhere."""


class DeadlineError(TwophaseError):
    """A request was not finished by its deadline; it was aborted, and its blocks are free."""


class DrainingError(TwophaseError):
    """The engine finishes accepted requests and refuses new ones."""
