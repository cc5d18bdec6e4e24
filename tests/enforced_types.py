"""Types and shapes of every call are enforced: each call is a scope of jaxtyping, in which beartype checks each value.

jaxtyping's own decorator does the same in ten times as long: it binds the signature and checks every argument twice.
The scheduler's and the engine's tests make millions of calls.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_ENFORCED = "_types_are_enforced"
_jaxtyped = jaxtyping.jaxtyped
_beartyped = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
_scope = jaxtyping.jaxtyped("context")


def enforce_types(*packages: str) -> None:
    """In what is imported from now on of these packages, every function and dataclass is `enforced`."""
    jaxtyping.jaxtyped = enforced
    jaxtyping.install_import_hook(packages, "beartype.beartype")


def enforced(thing: Any = None, *, typechecker: Any = beartype) -> Any:
    """In place of `jaxtyping.jaxtyped`: the function with its types checked, or the dataclass with its fields'."""
    if thing is None:
        return enforced
    if inspect.isclass(thing):
        init = vars(thing).get("__init__")
        if dataclasses.is_dataclass(thing) and init is not None and not hasattr(init, _ENFORCED):
            thing.__init__ = enforced(init)
        return thing
    if not isinstance(thing, types.FunctionType) or _is_run_later(thing):
        return _jaxtyped(thing, typechecker=_beartyped)
    return _checked(thing)


def _is_run_later(function: types.FunctionType) -> bool:
    """Its call returns before its body runs, so that the call's scope has ended by then."""
    return inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)


def _checked(function: types.FunctionType) -> Callable:
    checked = _beartyped(_with_known_annotations(function))
    if checked is function:  # nothing is annotated
        return function
    config = jaxtyping.config

    def call(*args, **kwargs):
        __tracebackhide__ = True
        return (function if config.jaxtyping_disable else checked)(*args, **kwargs)

    def call_in_a_scope(*args, **kwargs):
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _scope:
            return checked(*args, **kwargs)

    with_shapes = any(map(_may_have_a_shape, checked.__annotations__.values()))
    wrapper = functools.wraps(function)(call_in_a_scope if with_shapes else call)
    setattr(wrapper, _ENFORCED, True)
    return wrapper


def _with_known_annotations(function: types.FunctionType) -> types.FunctionType:
    """The function, or a copy without the annotations whose names are not known yet, or only to a type checker."""
    annotations = function.__annotations__
    known = {name: _known(annotation, function.__globals__) for name, annotation in annotations.items()}
    if all(known[name] is annotations[name] for name in annotations):
        return function
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(copy, function)
    del copy.__wrapped__
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = known
    return copy


def _known(annotation: Any, names: dict[str, Any]) -> Any:
    """The annotation itself, or with its quoted names looked up; Any if there is no such name."""
    if not _has_quotes(annotation):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:
        return Any


def _may_have_a_shape(annotation: Any) -> bool:
    """Whether a value of this type is, or may hold, one whose shape is checked together with the other values'."""
    if isinstance(annotation, type):
        return issubclass(annotation, jaxtyping.AbstractArray)
    if isinstance(annotation, typing.TypeVar | typing.NewType):
        return True
    return any(map(_may_have_a_shape, _inner(annotation)))


def _has_quotes(annotation: Any) -> bool:
    if isinstance(annotation, str | typing.ForwardRef):
        return True
    return typing.get_origin(annotation) is not typing.Literal and any(map(_has_quotes, _inner(annotation)))


def _inner(annotation: Any) -> Iterable:
    return annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
