"""Two processes that call each other: a check, and the answer it checks.

The check never runs what a learner wrote. It holds `Proxy` objects in its place; calling one sends the arguments as
data (wire.py), and the answer's process sends the result back as data. What is no data goes as a handle, either way:
the toy model a check passes is a proxy in the answer's process, and its calls are answered, and counted, by the check.

A `Peer` is one end. Both ends are the same code but for `Rules`, which say what the other end may do with a handle.
"""

import builtins
import struct
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import (
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

import numpy as np
import torch

from twophase.core.errors import TwophaseError
from twophase_labs.machine.checks import Rejected
from twophase_labs.machine.grading.wire import MAX_BYTES, Reader, Table, WireError, Writer
from twophase_labs.machine.judge import learners_line
from twophase_labs.machine.limits import OutOfTime
from twophase_labs.machine.unfilled import UnfilledError

MAX_MESSAGE_CHARS = 2_000
# Comparisons are not among those of an answer's objects: one could equal everything.
OPERATORS = frozenset(
    [
        "__call__",
        "__len__",
        "__getitem__",
        "__setitem__",
        "__delitem__",
        "__iter__",
        "__next__",
        "__enter__",
        "__exit__",
    ]
)
TRUSTED_OPERATORS = OPERATORS | frozenset(
    ["__contains__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__reversed__"]
)
_LIBRARIES = ("torch", "transformers", "transformers_modules")  # models and what they return: data, not methods
_LENGTH = struct.Struct("<Q")


class AnswerGone(TwophaseError):
    """The other process ended, or what it sent is no message."""


class Proxy:
    """Stands for an object in the other process."""

    _peer: "Peer"
    _number: int
    _kind: str

    def __init__(self, peer: "Peer", number: int) -> None:
        if not isinstance(peer, Peer):
            raise TypeError(f"{self._kind} objects cannot be made while graded from outside")
        vars(self).update(_peer=peer, _number=number)

    def __repr__(self) -> str:
        return f"<{self._kind}>"

    def _blanks_left(self) -> set[int]:
        return vars(self).get("_blanks", set())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols such as __array__ are asked for by libraries, not by a check
            raise AttributeError(f"{self._kind!r} object has no attribute {name!r}")
        return self._peer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self, name, value)


def _operator(name: str) -> Callable[..., Any]:
    if name == "__call__":
        return lambda self, *args, **kwargs: self._peer.ask("call", self, args, kwargs)
    return lambda self, *args: self._peer.ask("operate", self, name, args)


_classes: dict[tuple[str, tuple[str, ...]], type[Proxy]] = {}


def proxy_class(kind: str, operators: tuple[str, ...]) -> type[Proxy]:
    """A class of the remote type's name, so that messages tell it, with the operators that type has."""
    key = kind, operators
    if key not in _classes:
        members: dict[str, Any] = {name: _operator(name) for name in operators if name in TRUSTED_OPERATORS}
        if "__eq__" in members:
            members["__hash__"] = object.__hash__
        _classes[key] = type(kind, (Proxy,), {**members, "_kind": kind})
    return _classes[key]


class Rules:
    """What the other end may do. These are an answer's own: the check may do anything to it."""

    coerces = True
    operators = OPERATORS

    def may_name(self, value: Any) -> bool:
        return True

    def may_read(self, target: Any, name: str) -> bool:
        return True

    def may_write(self, target: Any, name: str) -> bool:
        return True

    def may_build(self, cls: type) -> bool:
        return True


OURS = ("twophase", "twophase_features", "twophase_tools", "twophase_labs")


class TrustedRules(Rules):
    """What an answer may do with a check's objects: call them and read what is public.

    Attributes:
        packages: Objects of classes defined under these names can be handles, besides functions.
    """

    coerces = False
    operators = TRUSTED_OPERATORS

    def __init__(self, *packages: str) -> None:
        self._roots = (*OURS, "collections", "_collections", "itertools", "functools", "builtins", *packages)

    def may_name(self, value: Any) -> bool:
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | GeneratorType):
            return True
        if isinstance(value, ModuleType | FrameType | CodeType | TracebackType | CoroutineType | type):
            return False  # each leads to everything
        cls = type(value)
        return cls.__module__.partition(".")[0] in (*self._roots, *_LIBRARIES)

    def may_read(self, target: Any, name: str) -> bool:
        # A generator has its frame as an attribute, and a frame has everything.
        if name.startswith("_") or isinstance(target, FunctionType | MethodType | GeneratorType):
            return False
        # A model can be called and looked at; its methods load and save files.
        is_ours = type(target).__module__.partition(".")[0] in self._roots
        value = None if is_ours else getattr(target, name, None)
        return is_ours or isinstance(value, torch.nn.Module) or not callable(value)

    def may_write(self, target: Any, name: str) -> bool:
        return name in getattr(type(target), "answers_may_set", ())

    def may_build(self, cls: type) -> bool:
        return cls.__module__.partition(".")[0] in OURS


class Peer:
    """One end of the channel. `ask` waits for the answer, and serves what the other end asks meanwhile.

    Args:
        handlers: Called by name for what the other end asks beyond handles.
    """

    def __init__(self, channel: Any, rules: Rules, handlers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._channel, self._rules = channel, rules
        self._handlers: dict[str, Callable[..., Any]] = {
            "call": self._call,
            "get": self._get,
            "set": self._set,
            "operate": self._operate,
        }
        self._handlers.update(handlers or {})
        self._table, self._depth = Table(), 0
        self._named: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._proxies: dict[int, Proxy] = {}
        self._thrown: list[BaseException] = []
        self.is_broken = False  # interrupted in the middle of an exchange, or gone
        self.is_gone = False
        self.is_running_code = False  # what the other end asked for, not this protocol
        self.coerces = rules.coerces

    def ask(self, op: str, *operands: Any) -> Any:
        """What the other end's handler returns.

        Raises:
            AnswerGone: there is no other end any more, or it does not keep to the protocol.
        """
        was_running, self.is_running_code = self.is_running_code, False
        try:
            with self._inside():
                self._send("ask", op, operands)
                while True:
                    message = self._receive()
                    if message is None:
                        raise self._gone("the answer's process ended")
                    if message[0] == "ask":
                        self._serve(*message[1:])
                    elif message[0] == "gave":
                        return message[1]
                    else:
                        break
            raise _rebuilt(self, message[1])
        finally:
            self.is_running_code = was_running

    def serve(self) -> None:
        """Answer what the other end asks, until it closes the channel."""
        while True:
            with self._inside():
                message = self._receive()
                if message is None:
                    return
                self._serve(*message[1:])

    def _inside(self) -> "_Level":
        return _Level(self)

    def _serve(self, op: Any, operands: Any) -> None:
        """Do one thing the other end asked for, and send what came of it."""
        handler = self._handlers.get(op) if type(op) is str else None
        try:
            if handler is None or type(operands) is not tuple:
                raise WireError(f"nothing is called {op!r} here")
            self.is_running_code = True
            try:
                given = handler(*operands)
            finally:
                self.is_running_code = False
            # What an answer reads of a check's objects is not shared: it could empty the list that counts its calls.
            self._send("gave", given if self.coerces else self._copied(given))
        except AnswerGone:
            raise
        except BaseException as error:
            self.is_running_code = False
            self._send("threw", _described(self, error))

    def _copied(self, value: Any) -> Any:
        """Data as a copy, unless it was shared before as an argument."""
        kind = type(value)
        if kind is tuple:
            return tuple(self._copied(item) for item in value)
        if kind not in (list, dict, set, np.ndarray, torch.Tensor) or self._table.knows(value):
            return value
        if kind is dict:
            return {key: self._copied(item) for key, item in value.items()}
        return [self._copied(item) for item in value] if kind is list else deepcopy(value)

    def _send(self, *message: Any) -> None:
        body = Writer(self._table, self).message(message)
        if len(body) > MAX_BYTES:
            raise self._gone(f"more than {MAX_BYTES} bytes at once")
        try:
            self._channel.sendall(_LENGTH.pack(len(body)) + body)
        except (BrokenPipeError, ConnectionError) as error:
            raise self._gone("the answer's process ended") from error

    def _receive(self) -> tuple[Any, ...] | None:
        """The next message, or None when the other end has closed."""
        length = self._read(_LENGTH.size)
        if length is None:
            return None
        (size,) = _LENGTH.unpack(length)
        body = self._read(size) if size <= MAX_BYTES else None
        if body is None:
            raise self._gone("a message is cut short or too long")
        try:
            message = Reader(memoryview(body), self._table, self).message()
        except WireError as error:
            raise self._gone(str(error)) from error
        sizes = {"ask": 3, "gave": 2, "threw": 2}
        if type(message) is not tuple or not message or sizes.get(_text(message[0])) != len(message):
            raise self._gone("what came is no message")
        return message

    def _read(self, size: int) -> bytearray | None:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                got = self._channel.recv_into(view[at:])
            except ConnectionError:
                return None
            if not got:
                return None
            at += got
        return data

    def _gone(self, why: str) -> AnswerGone:
        self.is_broken = self.is_gone = True
        return AnswerGone(why)

    # What the other end may ask of a handle

    def _call(self, target: Any, args: Any, kwargs: Any) -> Any:
        self._check(self._is_named(target) and type(args) is tuple and type(kwargs) is dict)
        return target(*args, **kwargs)

    def _get(self, target: Any, name: Any) -> Any:
        self._check(self._is_named(target) and type(name) is str)
        if not self._rules.may_read(target, name):
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
        return getattr(target, name)

    def _set(self, target: Any, name: Any, value: Any) -> None:
        self._check(self._is_named(target) and type(name) is str)
        if not self._rules.may_write(target, name):
            raise AttributeError(f"attribute {name!r} of {type(target).__name__!r} objects is not writable here")
        setattr(target, name, value)

    def _operate(self, target: Any, name: Any, args: Any) -> Any:
        self._check(self._is_named(target) and name in self._rules.operators and type(args) is tuple)
        return getattr(type(target), name)(target, *args)

    def _is_named(self, target: Any) -> bool:
        return id(target) in self._numbers

    @staticmethod
    def _check(holds: bool) -> None:
        if not holds:
            raise WireError("asked of what was never given")

    # Handles, for wire.py

    def name_of(self, value: Any) -> tuple[bool, int, str, tuple[str, ...]]:
        if isinstance(value, Proxy) and value._peer is self:
            return False, value._number, "", ()
        number = self._numbers.get(id(value))
        if number is None:
            if not self._rules.may_name(value):
                raise WireError(f"an object of type {type(value).__name__} cannot leave the check")
            number = self._numbers[id(value)] = len(self._named)
            self._named.append(value)
        has = tuple(sorted(name for name in self._rules.operators if _has(type(value), name)))
        return True, number, type(value).__name__, has

    def mine(self, number: int) -> Any:
        if not 0 <= number < len(self._named):
            raise WireError("a handle that was never given")
        return self._named[number]

    def theirs(self, number: int, kind: str, operators: tuple[str, ...]) -> Proxy:
        if number not in self._proxies:
            name = kind[:80] if kind.isidentifier() else "object"
            allowed = OPERATORS if not self.coerces else TRUSTED_OPERATORS
            self._proxies[number] = proxy_class(name, tuple(o for o in operators if o in allowed))(self, number)
        return self._proxies[number]

    def may_build(self, cls: type) -> bool:
        return self._rules.may_build(cls)


class _Level:
    """One exchange; both ends forget what they shared when the outermost one ends."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        self._peer._depth += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        peer = self._peer
        peer._depth -= 1
        if error is not None and not isinstance(error, WireError):  # a WireError is raised before anything is sent
            peer.is_broken = True
        if not peer._depth:
            peer._table = Table()


def _has(cls: type, name: str) -> bool:
    if name in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__"):
        return getattr(cls, name) is not getattr(object, name)
    return hasattr(cls, name)


def _text(value: Any) -> str:
    return value if type(value) is str else ""


# -- Exceptions


def _described(peer: Peer, error: BaseException) -> dict[str, Any]:
    """An exception as data; one that came from the other end is named by its number there."""
    error = _beneath_triton(error)
    try:
        message = str(error)[:MAX_MESSAGE_CHARS]
    except BaseException as problem:  # the class is a learner's
        message = f"(its message could not be made: {type(problem).__name__})"
    origin = getattr(error, "_origin", None)
    if origin is None:
        peer._thrown.append(error)
    blank = (error.exercise, error.number) if type(error) is UnfilledError else None
    return {
        "classes": [(cls.__module__, cls.__qualname__) for cls in type(error).__mro__[:-1]],
        "message": message,
        "line": learners_line(error)[:MAX_MESSAGE_CHARS],
        "origin": origin,
        "number": len(peer._thrown) - 1 if origin is None else None,
        "blank": blank,
    }


def _beneath_triton(error: BaseException) -> BaseException:
    while type(error).__module__.startswith("triton") and error.__cause__ is not None:
        error = error.__cause__
    return error


def _rebuilt(peer: Peer, told: Any) -> BaseException:
    """The exception itself if it was this end's; else one that has its name, its message and its nearest known base."""
    try:
        origin, line, message = told["origin"], str(told["line"]), str(told["message"])
        if type(origin) is int and 0 <= origin < len(peer._thrown):
            error = peer._thrown[origin]
        elif told["blank"] is not None:
            exercise, number = told["blank"]
            error = UnfilledError(str(exercise), int(number))
            error.args = (message,)
        else:
            error = _stand_in(told["classes"], message, any_class=peer.coerces)
        number = told["number"]
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as problem:
        raise peer._gone("an exception that is none") from problem
    if peer.coerces:
        error._origin = number  # type: ignore[attr-defined]
    elif line:
        error.learners_line = line  # type: ignore[attr-defined]
    return error


def _stand_in(classes: list[tuple[str, str]], message: str, any_class: bool) -> BaseException:
    module, name = classes[0]
    base = next((found for found in (_known(*names, any_class) for names in classes) if found), Exception)

    def told(self: BaseException) -> str:
        return message

    members = {"__str__": told, "__init__": lambda self: None, "__module__": str(module)}
    cls: Any = type(str(name).rpartition(".")[2], (base,), members)
    made: BaseException = cls.__new__(cls, message)
    return made


def _known(module: str, name: str, any_class: bool) -> type[BaseException] | None:
    """A class of exceptions by name. A check's own refusals are nothing an answer can raise."""
    cls = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        return None
    allowed = any_class or issubclass(cls, Exception | SystemExit | OutOfTime)
    ours = module == "builtins" or module.partition(".")[0] in (*OURS, "torch")
    return cls if allowed and (any_class or ours) and not issubclass(cls, Rejected) else None
