"""8.1: server-sent events, from bytes that are cut anywhere."""

from collections.abc import Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, plain, reject, shown
from twophase_labs.machine.exercise import exercise

READER = exercise(
    "8.1", "Events out of bytes", "EventReader", points=4, minutes=18, lines=11, difficulty=2, time_limit_s=15
)
READER.objective = "read a streamed answer from bytes that are cut anywhere"
READER.hints = (
    "What do you know for certain after some bytes? Only the lines whose line feed has come. Keep the rest, as "
    "bytes: half a character cannot be decoded.",
    "Two things live from one call to the next, and `__init__` has them: the bytes of an unfinished line, and the "
    "data lines of an unfinished event. `*lines, rest = (rest + data).split(b'\\n')` gives you the whole lines.",
    "def feed(self, data):\n"
    '    *lines, self.rest = (self.rest + data).split(b"\\n")\n'
    "    events = []\n"
    "    for line in lines:\n"
    "        line = ...                         # without a carriage return, decoded\n"
    "        if not line:                       # the event ends\n"
    "            ...\n"
    '        field, _, value = line.partition(":")\n'
    '        if field == "data":\n'
    "            self.data.append(...)\n"
    "    return events",
)

Event = tuple[str, ...]  # its lines of data
ASCII = ("{}", '{"text":" Paris"}', "[DONE]", "a: b", "x", "data: y", "0", '{"text":"a\\nb"}', "'&amp;'")
WIDE = ("é", "naïve ☕", "日本", "🙂🙂", '{"text":"€"}', "e\u0301")
NO_ENDS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"  # str.splitlines would split here, the format does not


def written(event: Event, end: str = "\n", space: str = " ") -> str:
    """An event as a server sends it."""
    return "".join(f"data:{space}{line}{end}" for line in event) + end


def content(event: Event) -> str:
    return "\n".join(event)


def fed(reader: Any, chunks: Sequence[bytes]) -> list[list[str]]:
    """What each call of feed returned. Later calls must leave it so, which shows in the answer's process only."""
    returned, kept = [], []
    for chunk in chunks:
        kept.append(reader.feed(chunk))
        got = plain(kept[-1])
        if type(got) not in (list, tuple):
            reject(f"feed({shown(chunk)}) returned {type(got).__name__}, expected a list of texts")
        for one in map(plain, got):
            if type(one) is not str:
                reject(f"feed({shown(chunk)}) returned a list with {shown(one)} in it, which is no text")
        returned.append(list(got))
    for chunk, one, was in zip(chunks, kept, returned, strict=True):
        if list(plain(one)) != was:
            reject(f"the list that feed({shown(chunk)}) returned is {shown(list(plain(one)))} after later calls",
                   f"it was {shown(was)}", "Return a new list from each call.")  # fmt: skip
    return returned


def reads(answer: Any, chunks: Sequence[bytes], expected: Sequence[Sequence[str]]) -> None:
    """Each call returns just the events that its bytes completed."""
    got = fed(answer.EventReader(), chunks)
    for number, (one, right) in enumerate(zip(got, expected, strict=True)):
        try:
            compare(one, list(right), what=f"what feed({shown(chunks[number])}) returned", axes=("event",))
        except Rejected as error:
            before = b"".join(chunks[:number])
            reject(str(error), *error.details, f"before it, feed had got {shown(before)}")


@READER.check("reads whole events")
def whole_events(answer: Any, draw: Draw) -> None:
    """An event's data is what follows `data: `, as it was sent."""
    for texts in (ASCII, [draw.choice(ASCII) for _ in range(4)]):
        reads(answer, [written((text,)).encode() for text in texts], [[text] for text in texts])
    reads(answer, [b"data: [DONE]\n\n", b"data: x\n\n"], [["[DONE]"], ["x"]])  # whoever reads the texts ends there


@READER.check("reads several events at once", num_events=(2, 7))
def several_in_one(answer: Any, draw: Draw, num_events: int) -> None:
    """One chunk may hold many events: return all that are complete."""
    texts = [draw.choice(ASCII) for _ in range(num_events)]
    reads(answer, ["".join(written((text,)) for text in texts).encode()], [texts])


@READER.check("returns an event with its last byte, and not before")
def holds_back(answer: Any, draw: Draw) -> None:
    """An event ends with its empty line. What came before may still grow; what comes behind belongs to the next one."""
    # Nothing before the empty line, and the event with the very byte that ends it.
    text = draw.choice(ASCII)
    reads(answer, [b"da", f"ta: {text}".encode(), b"\n", b"\n", b""], [[], [], [], [text], []])
    reads(answer, [f"data: {text}\n\ndata: he".encode(), b"re\n\n"], [[text], ["here"]])


def cut(answer: Any, events: Sequence[Event], size: int, end: str = "\n", before: str = "") -> None:
    """The same events, `size` bytes at a time; an event is complete with the last byte of its empty line."""
    sent, ends, at = before.encode(), [], len(before.encode())
    for event in events:
        sent += written(event, end).encode()
        at = len(sent)
        ends.append(at)
    chunks = [sent[i : i + size] for i in range(0, len(sent), size)]
    expected = [
        [content(event) for event, at in zip(events, ends, strict=True) if i * size < at <= (i + 1) * size]
        for i in range(len(chunks))
    ]
    reads(answer, chunks, expected)


@READER.check("bears cuts anywhere", size=(1, 2, 7, 30))
def cut_anywhere(answer: Any, draw: Draw, size: int) -> None:
    """Keep what is unfinished for the next call: a line may come in three parts, and so may the two line feeds."""
    cut(answer, [(draw.choice(ASCII),) for _ in range(5)], size)


@READER.check("bears a cut within a character", size=(1, 3, 11))
def cut_in_characters(answer: Any, draw: Draw, size: int) -> None:
    """'é' is two bytes in UTF-8. Decode whole lines only."""
    cut(answer, [(text,) for text in WIDE], size)


@READER.check("joins an event's lines")
def joins_lines(answer: Any, draw: Draw) -> None:
    """Several data lines of one event are joined by a line feed, and an empty one is one of them."""
    # Empty lines of data, too.
    events = [tuple(draw.choice(ASCII) for _ in range(num)) for num in (2, 1, 3, 2)]
    events += [("a", "b"), ("a", ""), ("", "a"), ("a", "", "b"), ("", "")]
    cut(answer, events, 1000)
    cut(answer, events, 5)


@READER.check("drops one space and no more")
def drops_one_space(answer: Any, draw: Draw) -> None:
    """At most one space behind the colon belongs to the format. All others, and an empty text, are data. `lstrip`
    takes any number of any of its letters, `removeprefix` just the prefix."""
    sent = "data:none\n\ndata:  two \n\ndata: \n\ndata:\n\n"
    reads(answer, [sent.encode()], [["none", " two ", "", ""]])
    reads(answer, [b"data:data\n\ndata:date\n\n", b"data:\tx\n\n"], [["data", "date"], ["\tx"]])


@READER.check("passes over comments and other fields")
def passes_over_the_rest(answer: Any, draw: Draw) -> None:
    """A line that begins with a colon is a comment; only the field named just `data` counts; only an empty line
    ends an event; no data, no event."""
    # Comments, as proxies send them to keep a connection open; other fields; events without data.
    text = draw.choice(ASCII)
    reads(answer, [b": keep-alive\n\n", b":\n\n\n\n", written((text,)).encode()], [[], [], [text]])
    sent = f"event: token\nid: 7\ndata: {text}\nretry: 10\n: data: no\ndatum: no\ndatabase: 5\n\nevent: end\n\n"
    reads(answer, [sent.encode()], [[text]])
    reads(answer, [b"data: a\n", b": still here\n", b"data: b\n\n"], [[], [], ["a\nb"]])
    for other in ("event: x", "id: 7", ": no", " ", " data: no", "data : no", "DATA: no"):
        reads(answer, [f"data: a\ndata: b\n{other}\ndata: c\n\n".encode()], [["a\nb\nc"]])
    reads(answer, [b"event: ping\ndata: a\n\n"], [["a"]])


@READER.check(
    "takes both line ends",
    size=(1000, 1, 4),
    hint="Some servers end lines with \\r\\n, some only a few. The \\r may come in one chunk and the \\n in the next. "
    "Nothing else ends a line, but str.splitlines thinks so of ten more characters.",
)
def other_line_ends(answer: Any, draw: Draw, size: int) -> None:
    # \r\n, also when the two are cut apart, and next to \n; no others.
    events = [(draw.choice(ASCII),), (draw.choice(WIDE), draw.choice(ASCII)), (draw.choice(ASCII),)]
    cut(answer, events, size, end="\r\n")
    mixed = [b"data: a\r\ndata: b\n\r\n", b"data: c\r\n\n", b"data: d\n\n", b"data: e\n\r\n", b"data: f\r\n\r\n"]
    reads(answer, mixed, [["a\nb"], ["c"], ["d"], ["e"], ["f"]])
    reads(answer, mixed[:1:-1], [["f"], ["e"], ["d"]])
    cut(answer, [(NO_ENDS,), (NO_ENDS, "a")], size)


@READER.check("reads any stream")
def any_stream(answer: Any, draw: Draw) -> None:
    """Feed it byte by byte and compare with all at once."""
    for _ in range(6):
        events = [
            tuple(draw.choice([*ASCII, *WIDE, NO_ENDS, " ", ""]) for _ in range(draw.integer(1, 4)))
            for _ in range(draw.integer(1, 9))
        ]
        cut(answer, events, draw.integer(1, 40), draw.choice(["\n", "\r\n"]), draw.choice(["", ": hello\n\n"]))


@READER.check("reads long streams")
def long_streams(answer: Any, draw: Draw) -> None:
    """Nothing limits an event's length or a stream's."""
    # An event larger than a network packet, in packets and at once, and many of them.
    for size in (1460, 10**6):
        cut(answer, [("x" * 140_000,), ("é" * 5000,)], size)
    cut(answer, [(str(i),) for i in range(2000)], 1460)


@READER.check("keeps streams apart")
def readers_are_apart(answer: Any, draw: Draw) -> None:
    """Set what an EventReader remembers in `__init__`."""
    one, other = answer.EventReader(), answer.EventReader()
    got = [fed(one, [b"data: a"]), fed(other, [b"data: b\n"]), fed(one, [b"\n\n"]), fed(other, [b"\n"])]
    compare(got, [[[]], [[]], [["a"]], [["b"]]], what="what two of them returned in turn")
