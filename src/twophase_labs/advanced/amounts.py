"""Numbers of things in messages: 1 draft, 2 drafts."""


def amount(number: int, thing: str, things: str = "") -> str:
    """`things` where the plural takes more than an s."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"
