"""What `decode_kernel = use("3.9")` stands for when an answer is graded."""

from collections.abc import Mapping
from typing import Any


class Alias:
    """Another name for an exercise's object, looked up when it is used.

    Later than in a notebook, because the exercise's cell, or the reference in its place, takes its name after other
    cells have run. So an answer never gets hold of more than it would under the exercise's own name.
    """

    def __init__(self, namespace: Mapping[str, Any], name: str) -> None:
        self._namespace, self._name = namespace, name

    def _found(self) -> Any:
        return self._namespace[self._name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._found()(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        return self._found()[grid]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._found())
