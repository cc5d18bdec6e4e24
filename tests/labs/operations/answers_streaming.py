"""Answers that prove the check of exercise 8.1."""

from twophase_labs.machine.bank import right, wrong

WHOLE, SEVERAL = "reads whole events", "reads several events at once"
SOON, CHARACTERS = "returns an event with its last byte, and not before", "bears a cut within a character"
LINES, SPACE = "joins an event's lines", "drops one space and no more"
OTHERS, ENDS, LONG = "passes over comments and other fields", "takes both line ends", "reads long streams"
APART = "keeps streams apart"

ONE_PER_CALL = r"""
class EventReader:
    def __init__(self):
        self.rest = b""

    def feed(self, data):
        event, end, rest = (self.rest + data).partition(b"\n\n")
        if not end:
            self.rest = event
            return []
        self.rest = rest
        return [event.decode().removeprefix("data: ")]
"""
WITH_A_DECODER = r"""
import codecs
import re

class EventReader:
    def __init__(self):
        self.decoder, self.text = codecs.getincrementaldecoder("utf-8")(), ""

    def feed(self, data):
        self.text += self.decoder.decode(data)
        found = []
        while (match := re.search(r"(?:^|\n)\r?\n", self.text)) is not None:
            block, self.text = self.text[: match.start()], self.text[match.end() :]
            values = [m[1] for line in block.split("\n") if (m := re.fullmatch(r"data(?:: ?(.*?))?\r?", line))]
            if values:
                found.append("\n".join(value or "" for value in values))
        return found
"""
IN_BLOCKS = r"""
import re

class EventReader:
    def __init__(self):
        self.rest = b""

    def feed(self, data):
        self.rest += data
        found = []
        while (match := re.search(rb"(?:^|(?<=\n))\r?\n", self.rest)) is not None:
            block, self.rest = self.rest[: match.start()], self.rest[match.end() :]
            lines = [line for line in block.decode().replace("\r\n", "\n").split("\n") if line.startswith("data:")]
            if lines:
                found.append("\n".join(line[5:].removeprefix(" ") for line in lines))
        return found
"""

# fmt: off
BANKS = {
    "8.1": (
        wrong("the line, not the data", 'value.removeprefix(" ")', "line", by=WHOLE),
        wrong("one event per call", ONE_PER_CALL, by=SEVERAL),
        wrong("forgets an unfinished line", "self.rest + data", "data", by=SOON),
        wrong("decodes what it can", 'b"", []', "'', []", '(self.rest + data).split(b"\\n"',
              "(self.rest + data.decode(errors='ignore')).split('\\n'", '.removesuffix(b"\\r").decode(',
              ".removesuffix('\\r'", by=CHARACTERS),
        wrong("lines run together", '"\\n".join', "''.join", by=LINES),
        wrong("drops a character", '.removeprefix(" ")', "[1:]", by=SPACE),
        wrong("events without data", "self.data:", "True:", by=OTHERS),
        wrong("line feeds only", '.removesuffix(b"\\r")', "", by=ENDS),
        wrong("64 KiB of a chunk", "self.rest + data", "self.rest + data[:65536]", by=LONG),
        wrong("one memory for all", "def __init__(self):",
              "def __init__(self, shared={}):\n        self.__dict__ = shared", by=APART),
        right("with an incremental decoder", WITH_A_DECODER),
        right("in blocks", IN_BLOCKS),
    ),
}
