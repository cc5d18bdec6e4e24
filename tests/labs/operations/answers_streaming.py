"""Answers that prove the check of exercise 8.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

WHOLE, SEVERAL, SOON, CUTS, CHARACTERS, LINES, SPACE, OTHERS, ENDS, ANY, LONG, APART = (
    "reads whole events",
    "reads several events at once",
    "returns an event with its last byte, and not before",
    "bears cuts anywhere",
    "bears a cut within a character",
    "joins an event's lines",
    "drops one space and no more",
    "passes over comments and other fields",
    "takes both line ends",
    "reads any stream",
    "reads long streams",
    "keeps streams apart",
)
INIT = """class EventReader:
    def __init__(self):
        self.rest, self.data = b"", []

"""
FEED = """    def feed(self, data):
        *lines, self.rest = (self.rest + data).split(b"\\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\\r").decode()
            field, _, value = line.partition(":")
            if field == "data":
                self.data.append(value.removeprefix(" "))
            if not line:
                if self.data:
                    events.append("\\n".join(self.data))
                self.data = []
        return events
"""
SOLUTION = INIT + FEED
EACH_CHUNK_ALONE = """class EventReader:
    def feed(self, data):
        return [part.decode().removeprefix("data: ") for part in data.split(b"\\n\\n") if part]
"""
ONE_PER_CALL = """class EventReader:
    def __init__(self):
        self.rest = b""

    def feed(self, data):
        event, end, rest = (self.rest + data).partition(b"\\n\\n")
        if not end:
            self.rest = event
            return []
        self.rest = rest
        return [event.decode().removeprefix("data: ")]
"""
AT_ONCE = """class EventReader:
    def __init__(self):
        self.rest = b""

    def feed(self, data):
        *lines, self.rest = (self.rest + data).split(b"\\n")
        return [line.decode().removeprefix("data: ") for line in lines if line]
"""
AS_TEXT = """class EventReader:
    def __init__(self):
        self.rest, self.data = "", []

    def feed(self, data):
        *lines, self.rest = (self.rest + data.decode(errors="replace")).split("\\n")
        events = []
        for line in lines:
            line = line.removesuffix("\\r")
            field, _, value = line.partition(":")
            if field == "data":
                self.data.append(value.removeprefix(" "))
            if not line:
                if self.data:
                    events.append("\\n".join(self.data))
                self.data = []
        return events
"""
SHARED = SOLUTION.replace(
    '    def __init__(self):\n        self.rest, self.data = b"", []\n', '    rest, data = b"", []\n'
).replace("                self.data = []\n", "                self.data.clear()\n")
OLDEST_DROPPED = SOLUTION.replace("(self.rest + data)", "(self.rest + data)[-65536:]")
BYTE_BY_BYTE = """class EventReader:
    def __init__(self):
        self.line, self.event = bytearray(), None

    def feed(self, data):
        done = []
        for byte in data:
            if byte != 10:
                self.line.append(byte)
                continue
            text = bytes(self.line).decode("utf-8")
            self.line.clear()
            if text.endswith("\\r"):
                text = text[:-1]
            if text == "":
                if self.event is not None:
                    done.append(self.event)
                self.event = None
            elif text.startswith("data:") or text == "data":
                value = text[5:]
                value = value[1:] if value[:1] == " " else value
                self.event = value if self.event is None else self.event + "\\n" + value
        return done
"""
WITH_A_DECODER = """import codecs
import re


class EventReader:
    def __init__(self):
        self.decoder, self.text = codecs.getincrementaldecoder("utf-8")(), ""

    def feed(self, data):
        self.text += self.decoder.decode(data)
        found = []
        while (match := re.search(r"(?:^|\\n)\\r?\\n", self.text)) is not None:
            block, self.text = self.text[: match.start()], self.text[match.end() :]
            values = [m[1] for line in block.split("\\n") if (m := re.fullmatch(r"data(?:: ?([^\\r]*))?\\r?", line))]
            if values:
                found.append("\\n".join(value or "" for value in values))
        return found
"""
BLOCKS = """import re


class EventReader:
    def __init__(self):
        self.rest = b""

    def feed(self, data):
        self.rest += data
        found = []
        while (match := re.search(rb"(?:^|(?<=\\n))\\r?\\n", self.rest)) is not None:
            block, self.rest = self.rest[: match.start()], self.rest[match.end() :]
            lines = [line for line in block.decode().splitlines() if line.startswith("data:")]
            if lines:
                found.append("\\n".join(line[5:].removeprefix(" ") for line in lines))
        return found
"""
FIRST_END_FOR_ALL = """class EventReader:
    def __init__(self):
        self.rest, self.end = b"", None

    def feed(self, data):
        self.rest += data
        if self.end is None and b"\\n" in self.rest:
            self.end = b"\\r\\n" if b"\\r\\n" in self.rest else b"\\n"
        found = []
        while self.end and self.end * 2 in self.rest:
            block, _, self.rest = self.rest.partition(self.end * 2)
            lines = [line for line in block.decode().split(self.end.decode()) if line.startswith("data:")]
            if lines:
                found.append("\\n".join(line[5:].removeprefix(" ") for line in lines))
        return found
"""
ADDED_UP = SOLUTION.replace('"\\n".join(self.data)', "self.data").replace("if self.data:", "if self.data is not None:")
ADDED_UP = ADDED_UP.replace('b"", []', 'b"", None').replace("self.data = []", "self.data = None")
ADDED_UP = ADDED_UP.replace(
    'self.data.append(value.removeprefix(" "))',
    'self.data = (self.data + "\\n" if self.data else "") + value.removeprefix(" ")',
)


def joined(by: str) -> str:
    return SOLUTION.replace('"\\n".join(self.data)', by)


def reading(value: str) -> str:
    return SOLUTION.replace('value.removeprefix(" ")', value)


def before_the_end(*lines: str) -> str:
    body = "".join(f"            {line}\n" for line in lines)
    return SOLUTION.replace("            if not line:\n", body + "            if not line:\n")


BANKS = {
    "8.1": Bank(
        wrong=(
            Wrong(
                "returns bytes",
                SOLUTION.replace(".decode()", "")
                .replace('":"', 'b":"')
                .replace('== "data"', '== b"data"')
                .replace('" "', 'b" "')
                .replace('"\\n".join', 'b"\\n".join'),
                WHOLE,
            ),
            Wrong("the line, not the data", SOLUTION.replace('value.removeprefix(" ")', "line"), WHOLE),
            Wrong("each chunk alone", EACH_CHUNK_ALONE, SOON),
            Wrong("one event per call", ONE_PER_CALL, SEVERAL),
            Wrong("a line is an event", AT_ONCE, SOON),
            Wrong(
                "the last event at the next one", SOLUTION.replace("if not line:", "if not line and lines[-1]:"), WHOLE
            ),
            Wrong("forgets an unfinished line", SOLUTION.replace("(self.rest + data)", "data"), SOON),
            Wrong(
                "forgets an unfinished event",
                SOLUTION.replace("        events = []", "        self.data = []\n        events = []"),
                SOON,
            ),
            Wrong("decodes chunks", AS_TEXT, CHARACTERS),
            Wrong("decodes what it can", AS_TEXT.replace('errors="replace"', 'errors="ignore"'), CHARACTERS),
            Wrong("lines run together", SOLUTION.replace('"\\n".join', '"".join'), LINES),
            Wrong("the last line only", SOLUTION.replace('"\\n".join(self.data)', "self.data[-1]"), LINES),
            Wrong("strips all spaces", SOLUTION.replace('removeprefix(" ")', "strip()"), SPACE),
            Wrong("drops a character", SOLUTION.replace('value.removeprefix(" ")', "value[1:]"), SPACE),
            Wrong("no empty data", SOLUTION.replace("if self.data:", "if any(self.data):"), LINES),
            Wrong("events without data", SOLUTION.replace("if self.data:", "if True:"), OTHERS),
            Wrong("all fields", SOLUTION.replace('field == "data"', "field"), OTHERS),
            Wrong("fields that begin with it", SOLUTION.replace('field == "data"', 'field.startswith("data")'), OTHERS),
            Wrong(
                "ends by itself", SOLUTION.replace("if self.data:", 'if self.data and self.data != ["[DONE]"]:'), WHOLE
            ),
            Wrong("fields that begin so", SOLUTION.replace('field == "data"', 'field.startswith("dat")'), OTHERS),
            Wrong("comments end an event", SOLUTION.replace("if not line:", 'if not line or line[0] == ":":'), OTHERS),
            Wrong("line feeds only", SOLUTION.replace('.removesuffix(b"\\r")', ""), ENDS),
            Wrong(
                "of a chunk's end only",
                SOLUTION.replace('.removesuffix(b"\\r")', "").replace("+ data)", '+ data.replace(b"\\r\\n", b"\\n"))'),
                ENDS,
            ),
            Wrong("no event above 64 KiB", OLDEST_DROPPED, LONG),
            Wrong("one memory for all", SHARED, APART),
            Wrong("escapes interpreted", reading("value[1:].encode().decode('unicode_escape')"), WHOLE),
            Wrong("line feeds unescaped", reading(r"""value.removeprefix(" ").replace("\\n", "\n")"""), WHOLE),
            Wrong("line feeds at the end stripped", joined(r'"\n".join(self.data).rstrip("\n")'), LINES),
            Wrong("line feeds at both ends stripped", joined(r'"\n".join(self.data).strip("\n")'), LINES),
            Wrong("empty lines left out", joined(r'"\n".join(filter(None, self.data))'), LINES),
            Wrong("an empty first line is nothing", ADDED_UP, LINES),
            Wrong("the prefix's letters", reading('line.lstrip("data:").removeprefix(" ")'), SPACE),
            Wrong("a tab for a space", reading("(value[1:] if value[:1].isspace() else value)"), SPACE),
            Wrong("a space ends an event", SOLUTION.replace("if not line:", "if not line.strip():"), OTHERS),
            Wrong("an indented field", SOLUTION.replace('field == "data"', 'field.lstrip() == "data"'), OTHERS),
            Wrong("a field and a space", SOLUTION.replace('field == "data"', 'field.rstrip() == "data"'), OTHERS),
            Wrong("capitals", SOLUTION.replace('field == "data"', 'field.lower() == "data"'), OTHERS),
            Wrong("an id forgets the data", before_the_end('if field == "id":', "    self.data = []"), OTHERS),
            Wrong(
                "an event's name forgets the data", before_the_end('if field == "event":', "    self.data = []"), OTHERS
            ),
            Wrong("a comment forgets a line", before_the_end('if line[:1] == ":":', "    self.data[:-1] = []"), OTHERS),
            Wrong("str.splitlines", BLOCKS, ENDS),
            Wrong("the first line's end for all", FIRST_END_FOR_ALL, ENDS),
            Wrong("two ends of one kind", BLOCKS.replace("(?:^|(?<=\\n))\\r?\\n", "\\n\\n|\\r\\n\\r\\n"), ENDS),
            Wrong("64 KiB of a chunk", SOLUTION.replace("+ data)", "+ data[:65536])"), LONG),
            Wrong("no event above 128 KiB", OLDEST_DROPPED.replace("65536", "131072"), LONG),
        ),
        right=(
            Right("byte by byte", BYTE_BY_BYTE),
            Right("with an incremental decoder", WITH_A_DECODER),
            Right("in blocks", BLOCKS.replace(".splitlines()", '.replace("\\r\\n", "\\n").split("\\n")')),
        ),
    ),
}
