"""python -m docs.site: the site in build/docs, from the README, docs/, the labs and the docstrings.

The pages are put together in build/docs-pages, with the repository's layout, so that links between them hold. What the
pages link to and is no page itself (a source file, a folder of tests) becomes one. The labs are shown as they are
shipped, with the figures of the solved notebooks. Exit status 1: a warning of Sphinx's, or a link that leads nowhere.
"""

import hashlib
import importlib
import importlib.util
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
from nbformat import NotebookNode

from twophase_labs.machine.lab import Workbook, exercise_of

ROOT = Path(__file__).parents[1]
PAGES, SITE, DIAGRAMS = (ROOT / "build" / name for name in ("docs-pages", "docs", "docs-diagrams"))
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml"}
PACKAGES = {
    "twophase": "The engine",
    "twophase_server": "The server",
    "twophase_tools": "Tools",
    "twophase_kernels": "Kernels",
}

INDEX = """
```{toctree}
:hidden:
:caption: The course

%s
docs/method
```

```{toctree}
:hidden:
:caption: The engine

docs/engine
docs/features
docs/results
docs/cli
docs/lecturers
docs/server
docs/gpu
docs/emulator
docs/cpu
API reference <api/index>
```

```{toctree}
:hidden:
:caption: The project

CONTRIBUTING
CHANGELOG
docs/log
sources/index
```
"""


class Stage:
    """Writes the pages, and a page for each other file that they link to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: set[Path] = set()

    def write(self, path: Path, text: str) -> None:
        (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / path).write_text(text, encoding="utf-8")

    def write_all(self) -> None:
        labs = [Path("labs") / f"{lab.name}.ipynb" for lab in Workbook.find(ROOT).labs.values()]
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        entries = [f"Lab {lab.stem[1]}: {lab.stem[3:]} <{lab.with_suffix('')}>" for lab in labs]
        toctree = INDEX % "\n".join(entries)
        self.write(Path("index.md"), self._with_links(readme, Path()) + toctree)
        pages = (f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
        for name in ("CONTRIBUTING.md", "CHANGELOG.md", *pages):
            text = (ROOT / name).read_text(encoding="utf-8")
            self.write(Path(name), self._with_links(text, Path(name).parent))
        for lab in labs:
            self.write(lab, nbformat.writes(self._with_figures(lab)))
        self._write_reference()
        self._write_sources()
        shutil.copytree(ROOT / "docs" / "images", self._folder / "docs" / "images")
        shutil.copytree(DIAGRAMS, self._folder / "labs" / "diagrams")

    # -- links

    def _with_links(self, text: str, folder: Path) -> str:
        """The text of a page in `folder`, with links to source files led to their pages."""
        return LINK.sub(lambda match: f"{match[1]}({self._target(match[2], folder)})", text)

    def _target(self, link: str, folder: Path) -> str:
        path, _, _ = link.partition("#")
        if "://" in link or not path:
            return link
        target = (ROOT / folder / path).resolve()
        if target.suffix in (".md", ".ipynb", ".svg") or not target.exists():
            return link
        self._sources.add(target.relative_to(ROOT))
        return f"{'../' * len(folder.parts)}{_source_page(target.relative_to(ROOT))}"

    # -- the labs

    def _with_figures(self, path: Path) -> NotebookNode:
        """A lab as shipped; what its cells print and draw is taken from the solved notebook, but for verdicts."""
        notebook = nbformat.read(ROOT / path, as_version=4)
        solved = nbformat.read(ROOT / "labsolutions" / path.name, as_version=4)
        outputs = {cell.id: cell.outputs for cell in solved.cells if cell.cell_type == "code"}
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = MERMAID.sub(_diagram, self._with_links(cell.source, path.parent))
            elif cell.cell_type == "code" and exercise_of(cell) is None and not cell.source.startswith("check("):
                cell.outputs = outputs.get(cell.id, [])
        return notebook

    # -- the reference

    def _write_reference(self) -> None:
        """A page per module, and one per package that lists them."""
        for package, title in PACKAGES.items():
            names = list(_modules(package))
            for name in names:
                self.write(Path("api") / f"{name}.md", self._module_page(name, name if name != package else title))
            children = "\n".join(name for name in names if name != package)
            with (self._folder / "api" / f"{package}.md").open("a", encoding="utf-8") as page:
                page.write(f"\n```{{toctree}}\n:maxdepth: 1\n\n{children}\n```\n")
        listed = "\n".join(PACKAGES)
        self.write(Path("api/index.md"), f"# API reference\n\n```{{toctree}}\n:maxdepth: 2\n\n{listed}\n```\n")

    def _module_page(self, name: str, title: str) -> str:
        origin = importlib.util.find_spec(name).origin  # type: ignore[union-attr]
        path = Path(str(origin)).relative_to(ROOT)
        self._sources.add(path)
        index = "   :no-index:\n" if name in PACKAGES else ""  # what a package lists has its place in a module
        head = f"# {title}\n\n[{path}](../{_source_page(path)})\n\n"
        return f"{head}```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n{index}```\n"

    # -- sources

    def _write_sources(self) -> None:
        for path in sorted(self._sources):
            self.write(Path(_source_page(path)), _listing(path) if (ROOT / path).is_dir() else _source(path))
        entries = "\n".join(_source_page(path).removeprefix("sources/").removesuffix(".md") for path in self._sources)
        text = "# Sources\n\nThe files that these pages link to.\n\n```{toctree}\n:maxdepth: 1\n\n%s\n```\n"
        self.write(Path("sources/index.md"), text % "\n".join(sorted(entries.split("\n"))))


def section_name(title: str) -> str:
    """As JupyterLab names a notebook's section, since that is how the pages link to one."""
    return title.replace(" ", "-")


def _source_page(path: Path) -> str:
    return f"sources/{str(path).lstrip('.')}.md"


def _source(path: Path) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * 6
    return f"# {path}\n\n{fence}{{code-block}} {LANGUAGES.get(path.suffix, 'text')}\n:linenos:\n\n{text}\n{fence}\n"


def _listing(path: Path) -> str:
    files = sorted(file.name for file in (ROOT / path).glob("*.py") if not file.name.startswith("_"))
    return "\n".join([f"# {path}/", "", *(f"- `{name}`" for name in files)])


def _diagram(match: re.Match[str]) -> str:
    """A mermaid diagram as a picture: drawn once, since it takes a second."""
    import mermaidx

    path = DIAGRAMS / f"{hashlib.sha256(match[1].encode()).hexdigest()[:16]}.svg"
    if not path.exists():
        path.write_text(mermaidx.render(match[1], theme="neutral").svg(), encoding="utf-8")
    width = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', path.read_text(encoding="utf-8"))
    size = f":width: {min(760, round(float(width[1])))}px\n" if width else ""
    return f"```{{image}} diagrams/{path.name}\n:class: diagram\n:alt: a diagram of what the text says\n{size}```"


def _modules(package: str) -> Iterator[str]:
    """The package and its public modules, in the order of their names."""
    yield package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield found.name


class _Links(HTMLParser):
    """What a page links to, and the names of its own places."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.places.add(value)


def broken_links(site: Path) -> list[str]:
    """Links from page to page, picture, script or section that lead nowhere; those to the outside are not tried."""
    pages: dict[Path, _Links] = {}
    for path in site.rglob("*.html"):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    broken = []
    for page, found in pages.items():
        for link in found.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


def main() -> int:
    from sphinx.cmd.build import build_main  # the tests know the functions above without it

    shutil.rmtree(PAGES, ignore_errors=True)
    DIAGRAMS.mkdir(parents=True, exist_ok=True)
    Stage(PAGES).write_all()
    settings = ["--conf-dir", str(ROOT / "docs"), "--fail-on-warning", "--keep-going", "--quiet"]
    status = build_main(["--builder", "html", *settings, str(PAGES), str(SITE)])
    broken = broken_links(SITE)
    for each in broken:
        print(f"leads nowhere: {each}")
    print(f"{SITE / 'index.html'}")
    return 1 if status or broken else 0


if __name__ == "__main__":
    sys.exit(main())
