"""python -m docs.generate [--check]: make the README's pictures and blocks, or name those that have drifted."""

import argparse
import sys
from pathlib import Path

import matplotlib

from docs import blocks, pictures

IMAGES = Path(__file__).parent / "images"


def drifted() -> list[str]:
    """What is not as the commands make it now."""
    found = []
    for name, draw in pictures.PICTURES.items():
        path = IMAGES / name
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if not pictures.is_same_picture(pictures.as_svg(draw()), there):
            found.append(f"docs/images/{name}")
    for page in blocks.PAGES:
        for name, text in blocks.blocks_in(page.read_text(encoding="utf-8")).items():
            if blocks.BLOCKS[name]() != text:
                found.append(f"{page.name}, block {name}")
    return found


def generate() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in pictures.PICTURES.items():
        (IMAGES / name).write_text(pictures.as_svg(draw()), encoding="utf-8")
    for page in blocks.PAGES:
        page.write_text(blocks.with_blocks(page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something has drifted")
    arguments = parser.parse_args()
    matplotlib.use("agg")
    if not arguments.check:
        generate()
        return 0
    found = drifted()
    for each in found:
        print(f"drifted: {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
