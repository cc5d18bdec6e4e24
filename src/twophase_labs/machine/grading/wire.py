"""Values between two processes: data only, nothing that runs when it is read.

A message carries a value, and what has changed since the last message in the lists, dicts, sets, arrays and tensors
that both ends hold. So a function at one end can modify a list of the other in place, return the very list it was
given, or a view of a tensor, and the other end sees just that. `Table` numbers those values in order of appearance;
both ends see the same messages and so count alike.

Everything else goes as a handle (remote.py). Reading checks every length, so that a forged message gives a `WireError`
and no more.
"""

import ctypes
import enum
import importlib
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from twophase.core.errors import TwophaseError
from twophase_labs.machine.unfilled import Unfilled

MAX_DEPTH = 64
MAX_BYTES = 2**29
SPARE_BYTES = 2**16  # a tensor whose storage is larger than it by more than that is copied first
_INT, _FLOAT, _COMPLEX = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<dd")
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_CONSTANTS = {b"N": None, b"T": True, b"F": False, b"E": Ellipsis, b"I": NotImplemented}
_NUMPY_KINDS = frozenset("biufc")


class WireError(TwophaseError):
    """A value that cannot be sent, or a message that is not one."""


@runtime_checkable
class Handles(Protocol):
    """How whatever is no data is named; see remote.py."""

    coerces: bool  # objects of subclasses of int, list and so on go as the plain thing

    def name_of(self, value: Any) -> tuple[bool, int, str, tuple[str, ...]]:
        """Whether it is this end's own, its number, its type's name, and which operators it has."""

    def mine(self, number: int) -> Any: ...

    def theirs(self, number: int, kind: str, operators: tuple[str, ...]) -> Any: ...

    def may_build(self, cls: type) -> bool:
        """Whether an object of this class may be made from a message."""


class Table:
    """The mutable values both ends hold, each with its contents as the other end knows them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: list[Any] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number_of(self, value: Any) -> int | None:
        return self._numbers.get(_identity(value))

    def knows(self, value: Any) -> bool:
        """Also a tensor whose memory is shared."""
        return self.number_of(value.untyped_storage() if isinstance(value, Tensor) else value) is not None

    def add(self, value: Any) -> int:
        number = len(self.values)
        self.values.append(value)
        self._known.append(None)
        self._numbers[_identity(value)] = number
        return number

    def note(self, number: int) -> None:
        """The other end knows this one's contents now."""
        self._known[number] = _contents(self.values[number])

    def forget_after(self, length: int) -> None:
        """Undo the additions of a message that was not sent."""
        for value in self.values[length:]:
            del self._numbers[_identity(value)]
        del self.values[length:], self._known[length:]

    def changed(self) -> list[int]:
        """Their numbers; memory before the tensors that lie in it."""
        found = [n for n, value in enumerate(self.values) if not _is_as(value, self._known[n])]
        return sorted(found, key=lambda n: not isinstance(self.values[n], torch.UntypedStorage))


def _identity(value: Any) -> tuple[str, int]:
    return ("storage", value._cdata) if isinstance(value, torch.UntypedStorage) else ("object", id(value))


def _bytes_of(storage: torch.UntypedStorage) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Its bytes, not a copy. Not by `Tensor.numpy`, after which `resize_` is refused."""
    if not storage.nbytes():
        return np.empty(0, np.uint8)
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(memoryview(memory), np.uint8)


def _contents(value: Any) -> Any:
    if isinstance(value, torch.UntypedStorage):
        return _bytes_of(value).copy()
    return _layout(value) if isinstance(value, Tensor) else value.copy()


def _layout(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _is_as(value: Any, known: Any) -> bool:
    if isinstance(value, torch.UntypedStorage):
        return value.nbytes() == known.nbytes and np.array_equal(_bytes_of(value), known)
    if isinstance(value, Tensor):
        return _layout(value) == known
    if isinstance(value, np.ndarray):
        return value.tobytes() == known.tobytes()
    if len(value) != len(known):
        return False
    if isinstance(value, list):
        return all(a is b for a, b in zip(value, known, strict=True))
    if isinstance(value, dict):
        return all(a is c and b is d for (a, b), (c, d) in zip(value.items(), known.items(), strict=True))
    return bool(value == known)


class Writer:
    """Encodes one message."""

    def __init__(self, table: Table, handles: Handles) -> None:
        self.out = bytearray()
        self._table, self._handles = table, handles
        self._new: list[int] = []

    def message(self, value: Any) -> bytearray:
        """The value, and what has changed since the last message.

        Raises:
            WireError: something in it cannot be sent; then nothing has happened.
        """
        length = len(self._table.values)
        try:
            return self._message(value)
        except BaseException:
            self._table.forget_after(length)
            raise

    def _message(self, value: Any) -> bytearray:
        changed = self._table.changed()
        self._size(len(changed))
        for number in changed:
            self._size(number)
            self._fill(self._table.values[number], 0)
        self.put(value, 0)
        for number in [*changed, *self._new]:
            self._table.note(number)
        return self.out

    def put(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(f"a value is nested more than {MAX_DEPTH} deep")
        for tag, constant in _CONSTANTS.items():
            if value is constant:
                self.out += tag
                return
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value, depth)
        else:
            self._other(value, depth)

    def _other(self, value: Any, depth: int) -> None:
        if isinstance(value, np.generic):
            self.put(value.item(), depth + 1)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, Unfilled):
            self._tagged(b"u", value._blank, depth)
        elif _is_record(type(value)):
            cls = type(value)
            self._tagged(b"o", (cls.__module__, cls.__qualname__, _parts(value)), depth)
        elif isinstance(value, type) and not self._handles.coerces and value.__module__ != "__main__":
            self._tagged(b"k", (value.__module__, value.__qualname__), depth)
        else:
            plain = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
            if self._handles.coerces and plain is not None:
                self.put(plain(value), depth + 1)
            else:
                self._tagged(b"h", self._handles.name_of(value), depth)

    def _tagged(self, tag: bytes, parts: Any, depth: int) -> None:
        self.out += tag
        self.put(tuple(parts), depth + 1)

    def _size(self, size: int) -> None:
        self.out += _INT.pack(size)

    def _blob(self, tag: bytes, data: Any) -> None:
        self.out += tag
        self._size(len(data))
        self.out += data

    def _int(self, value: int, depth: int) -> None:
        self._blob(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _float(self, value: float, depth: int) -> None:
        self.out += b"d" + _FLOAT.pack(value)

    def _complex(self, value: complex, depth: int) -> None:
        self.out += b"c" + _COMPLEX.pack(value.real, value.imag)

    def _str(self, value: str, depth: int) -> None:
        self._blob(b"s", value.encode("utf-8", "surrogatepass"))

    def _fixed(self, value: Any, depth: int) -> None:
        """What cannot change and is made of values."""
        tags: dict[Any, bytes] = {tuple: b"t", torch.Size: b"z", frozenset: b"f", slice: b"S", range: b"R"}
        self.out += tags[type(value)]
        parts = (value.start, value.stop, value.step) if isinstance(value, slice | range) else tuple(value)
        self._items(parts, depth)

    def _items(self, items: Iterable[Any], depth: int) -> None:
        items = tuple(items)
        self._size(len(items))
        for item in items:
            self.put(item, depth + 1)

    def _shared(self, value: Any, depth: int) -> None:
        if self._is_known(value):
            return
        tags: dict[type, bytes] = {list: b"l", dict: b"m", set: b"e"}
        self.out += tags[type(value)]
        self._fill(value, depth)

    def _is_known(self, value: Any) -> bool:
        """Whether a number in the table did for it; otherwise it gets one."""
        number = self._table.number_of(value)
        if number is None:
            self._new.append(self._table.add(value))
            return False
        self.out += b"r"
        self._size(number)
        return True

    def _fill(self, value: Any, depth: int) -> None:
        """The contents of a shared value."""
        if isinstance(value, torch.UntypedStorage):
            self._blob(b"b", _bytes_of(value).tobytes())
        elif isinstance(value, np.ndarray):
            self._blob(b"b", value.tobytes())
        elif isinstance(value, Tensor):
            self.put(_layout(value), depth)
        elif isinstance(value, dict):
            self._items((part for item in value.items() for part in item), depth)
        else:
            self._items(value, depth)

    def _array(self, value: Any, depth: int) -> None:
        if value.dtype.kind not in _NUMPY_KINDS:
            raise WireError(f"a NumPy array of dtype {value.dtype} cannot be sent")
        if not self._is_known(value):
            self.out += b"a"
            self.put((value.dtype.str, value.shape), depth + 1)
            self._fill(value, depth)

    def _tensor(self, value: Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            if value.layout != torch.strided or value.is_quantized:
                raise WireError(f"a tensor of layout {value.layout} cannot be sent")
            plain = value
            if type(value) is not Tensor or value.requires_grad or value.device.type != "cpu":
                plain = value.detach().cpu()
            plain = plain.resolve_conj().resolve_neg()
            storage = plain.untyped_storage()
            is_known = self._table.number_of(storage) is not None
            if not is_known and storage.nbytes() > plain.numel() * plain.element_size() + SPARE_BYTES:
                plain = plain.contiguous().clone()
                storage = plain.untyped_storage()
            if self._is_known(plain):
                return
            self.out += b"x"
            self.put(_name(plain.dtype), 0)
            if not self._is_known(storage):
                self.out += b"w"
                self._fill(storage, 0)
            self._fill(plain, 0)

    def _torchs(self, value: Any, depth: int) -> None:
        self.out += b"D" if isinstance(value, torch.dtype) else b"V"
        self.put(_name(value) if isinstance(value, torch.dtype) else str(value), depth + 1)


_WRITERS: dict[type, Callable[[Writer, Any, int], None]] = {
    int: Writer._int, float: Writer._float, complex: Writer._complex, str: Writer._str,
    bytes: lambda writer, value, depth: writer._blob(b"b", value),
    bytearray: lambda writer, value, depth: writer._blob(b"b", bytes(value)),
    **dict.fromkeys((tuple, torch.Size, frozenset, slice, range), Writer._fixed),
    **dict.fromkeys((list, dict, set), Writer._shared),
    Fraction: lambda writer, value, depth: writer._tagged(b"q", (value.numerator, value.denominator), depth),
    np.ndarray: Writer._array, torch.dtype: Writer._torchs, torch.device: Writer._torchs,
}  # fmt: skip
_PLAIN = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_record(cls: type) -> bool:
    """Whether objects of this class are values of the project: an Enum, a frozen dataclass or a named tuple."""
    if not cls.__module__.startswith("twophase") or "." in cls.__qualname__ or not can_be_imported(cls.__module__):
        return False
    is_frozen = is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return is_frozen or issubclass(cls, enum.Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def can_be_imported(module: str) -> bool:
    """Not what a sandbox hides: exercises with their oracles, and answers."""
    return ".exercises." not in f"{module}." and ".answers_" not in module


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, enum.Enum):
        return (value.name,)
    if isinstance(value, tuple):
        return tuple(value)
    return tuple(getattr(value, field.name) for field in fields(value))


class Reader:
    """Decodes one message."""

    def __init__(self, data: memoryview, table: Table, handles: Handles) -> None:
        self._data, self._at = data, 0
        self._table, self._handles = table, handles
        self._touched: list[int] = []

    def message(self) -> Any:
        """The value, once the changes that came with it are made.

        Raises:
            WireError: it is none.
        """
        try:
            for _ in range(self._size()):
                number = self._size()
                if number >= len(self._table.values):
                    raise WireError("a change of what was never sent")
                self._fill(self._table.values[number], 0)
                self._touched.append(number)
            value = self.get(0)
        except WireError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, struct.error, ArithmeticError) as error:
            raise WireError(f"not a message: {error}") from error
        if self._at != len(self._data):
            raise WireError("not a message: something follows it")
        for number in self._touched:
            self._table.note(number)
        return value

    def _take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._data) - self._at:
            raise WireError("not a message: it is cut short")
        self._at += size
        return self._data[self._at - size : self._at]

    def _size(self) -> int:
        size: int = _INT.unpack(self._take(8))[0]
        if size < 0:
            raise WireError("not a message: a negative size")
        return size

    def get(self, depth: int) -> Any:
        if depth > MAX_DEPTH + 8:
            raise WireError("not a message: nested too deep")
        tag = bytes(self._take(1))
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        return _READERS[tag](self, depth)

    def _int(self, depth: int) -> int:
        return int.from_bytes(self._take(self._size()), "little", signed=True)

    def _str(self, depth: int) -> str:
        return str(self._take(self._size()), "utf-8", "surrogatepass")

    def _fraction(self, depth: int) -> Fraction:
        numerator, denominator = self._parts(depth)
        return Fraction(numerator, denominator)

    def _items(self, depth: int) -> list[Any]:
        size = self._size()
        if size > len(self._data) - self._at:
            raise WireError("not a message: a size too large")
        return [self.get(depth + 1) for _ in range(size)]

    def _parts(self, depth: int) -> tuple[Any, ...]:
        parts = self.get(depth + 1)
        if type(parts) is not tuple:
            raise WireError("not a message: parts expected")
        return parts

    def _new(self, value: Any, depth: int) -> Any:
        number = self._table.add(value)
        self._touched.append(number)
        self._fill(value, depth)
        return value

    def _fill(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.UntypedStorage | np.ndarray):
            self._fill_bytes(value)
            return
        if isinstance(value, Tensor):
            self._fill_layout(value)
            return
        items = self._items(depth)
        value.clear()
        if isinstance(value, dict):
            value.update(zip(items[::2], items[1::2], strict=True))
        elif isinstance(value, set):
            value.update(items)
        else:
            value.extend(items)

    def _fill_bytes(self, value: Any) -> None:
        if bytes(self._take(1)) != b"b":
            raise WireError("not a message: bytes expected")
        data = self._take(self._size())
        if isinstance(value, torch.UntypedStorage) and len(data) != value.nbytes():
            value.resize_(len(data))  # `resize_` of a tensor
        room = _bytes_of(value) if isinstance(value, torch.UntypedStorage) else value
        if len(data) != room.nbytes:
            raise WireError("not a message: a tensor or array of another size")
        if isinstance(value, torch.UntypedStorage):
            room[:] = np.frombuffer(data, np.uint8)
        else:
            room[...] = np.frombuffer(data, value.dtype).reshape(value.shape)

    def _known(self, depth: int) -> Any:
        number = self._size()
        if number >= len(self._table.values) or isinstance(self._table.values[number], torch.UntypedStorage):
            raise WireError("not a message: a value that was never sent")
        return self._table.values[number]

    def _array(self, depth: int) -> Any:
        dtype, shape = self._parts(depth)
        kind = np.dtype(dtype)
        room = len(self._data) - self._at
        if kind.kind not in _NUMPY_KINDS or not _is_shape(shape) or _product(shape) * kind.itemsize > room:
            raise WireError("not a message: an impossible array")
        return self._new(np.zeros(shape, kind), depth)

    def _tensor(self, depth: int) -> Tensor:
        dtype = _DTYPES[self.get(depth + 1)]
        made = torch.empty(0, dtype=dtype)
        number = self._table.add(made)
        self._touched.append(number)
        made.set_(self._storage(), 0, (0,), (1,))
        self._fill_layout(made)
        return made

    def _fill_layout(self, tensor: Tensor) -> None:
        """Shape and strides, which must stay within the tensor's memory."""
        offset, shape, strides = self._parts(0)
        if not (_is_shape(shape) and _is_shape(strides) and _is_shape((offset,)) and len(shape) == len(strides)):
            raise WireError("not a message: an impossible tensor")
        storage = tensor.untyped_storage()
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 not in shape and (last + 1) * tensor.dtype.itemsize > storage.nbytes():
            raise WireError("not a message: a tensor larger than its memory")
        tensor.set_(storage, offset, shape, strides)

    def _storage(self) -> torch.UntypedStorage:
        tag = bytes(self._take(1))
        if tag == b"r":
            number = self._size()
            storage = self._table.values[number] if number < len(self._table.values) else None
            if not isinstance(storage, torch.UntypedStorage):
                raise WireError("not a message: memory that was never sent")
            return storage
        if tag != b"w" or bytes(self._data[self._at : self._at + 1]) != b"b":
            raise WireError("not a message: memory expected")
        (size,) = _INT.unpack(self._data[self._at + 1 : self._at + 9])
        if not 0 <= size <= len(self._data) - self._at:
            raise WireError("not a message: it is cut short")
        storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
        return self._new(storage, 0)

    def _handle(self, depth: int) -> Any:
        is_theirs, number, kind, operators = self._parts(depth)
        if type(number) is not int or type(kind) is not str or not all(type(name) is str for name in operators):
            raise WireError("not a message: no handle")
        return self._handles.theirs(number, kind, operators) if is_theirs is True else self._handles.mine(number)

    def _record(self, depth: int) -> Any:
        module, name, parts = self._parts(depth)
        cls = self._class(module, name)
        if not self._handles.may_build(cls) or not _is_record(cls):
            raise WireError(f"not a message: an object of {name}")
        if issubclass(cls, enum.Enum):
            return cls[parts[0]]
        if issubclass(cls, tuple):
            return cls._make(parts)  # type: ignore[attr-defined]
        made: Any = object.__new__(cls)
        for field, part in zip(fields(made), parts, strict=True):
            object.__setattr__(made, field.name, part)
        return made

    def _named_class(self, depth: int) -> type:
        cls = self._class(*self._parts(depth))
        if not self._handles.may_build(cls):
            raise WireError("not a message: a class")
        return cls

    def _class(self, module: Any, name: Any) -> type:
        if type(module) is not str or type(name) is not str or not can_be_imported(module):
            raise WireError("not a message: no class")
        if module not in sys.modules and self._handles.coerces:  # an answer's own end: it may import what it likes
            importlib.import_module(module)
        cls = getattr(sys.modules.get(module), name, None)
        if not isinstance(cls, type):
            raise WireError(f"not a message: no class {name} in {module}")
        return cls

    def _blank(self, depth: int) -> Unfilled:
        exercise, number, what = self._parts(depth)
        if type(exercise) is not str or type(number) is not int or type(what) is not str:
            raise WireError("not a message: no blank")
        return Unfilled(exercise, number, what)


def _is_shape(value: Any) -> bool:
    return type(value) is tuple and all(type(n) is int and 0 <= n < 2**48 for n in value)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _slice_or_range(cls: Any) -> Callable[[Reader, int], Any]:
    return lambda reader, depth: cls(*reader._items(depth))


_READERS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"i": Reader._int, b"s": Reader._str,
    b"d": lambda reader, depth: _FLOAT.unpack(reader._take(8))[0],
    b"c": lambda reader, depth: complex(*_COMPLEX.unpack(reader._take(16))),
    b"b": lambda reader, depth: bytes(reader._take(reader._size())),
    b"t": lambda reader, depth: tuple(reader._items(depth)),
    b"z": lambda reader, depth: torch.Size(reader._items(depth)),
    b"f": lambda reader, depth: frozenset(reader._items(depth)),
    b"S": _slice_or_range(slice), b"R": _slice_or_range(range),
    b"l": lambda reader, depth: reader._new([], depth),
    b"m": lambda reader, depth: reader._new({}, depth),
    b"e": lambda reader, depth: reader._new(set(), depth),
    b"q": Reader._fraction, b"r": Reader._known, b"a": Reader._array, b"x": Reader._tensor,
    b"D": lambda reader, depth: _DTYPES[reader.get(depth + 1)],
    b"V": lambda reader, depth: torch.device(reader.get(depth + 1)),
    b"h": Reader._handle, b"o": Reader._record, b"k": Reader._named_class, b"u": Reader._blank,
}  # fmt: skip
