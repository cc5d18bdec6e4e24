"""Source split into lines as Python counts them."""

import io


def python_lines(source: str) -> list[str]:
    r"""Lines that agree with the numbers of `ast`: "\r\n" and "\r" end a line too, and come back as "\n".

    `str.splitlines` also ends a line at a form feed, a vertical tab, U+2028 and others; Python does not.
    """
    return io.StringIO(source, newline=None).readlines()
