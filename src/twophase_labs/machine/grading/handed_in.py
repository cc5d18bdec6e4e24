"""What lies in a folder or an archive of submissions, and whose it is. Archives are opened within limits."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from zipfile import ZipFile

from twophase_labs.machine.grading.files import NotGradableError, opened

MAX_ENTRIES, MAX_MIB, MAX_DEPTH = 10_000, 1024, 2  # of an archive together with all archives inside it
FOLDERS_PASSED_OVER = re.compile(r"\.(?!\.)|__MACOSX|__pycache__|labsolutions$")
FILES_PASSED_OVER = re.compile(r"\.|00_|.*\.progress\.|.*\.csv$")  # lab 0 has no exercises
# 'Ann Lee_123_assignsubmission_file_' of Moodle, 'leeann_LATE_123_456_lab.ipynb' of Canvas
PLATFORM = re.compile(r"(?P<learner>.+?)(?:_LATE)?_(?P<id>\d{3,})_(?:assignsubmission_|\d{3,}_).*")
MAX_PARTS = 50  # of a path inside an archive; Python removes folders by recursion


@dataclass(frozen=True)
class HandedIn:
    """A file to grade, or the `problem` with it. `shown` is its path as a lecturer knows it, through archives."""

    learner: str
    path: Path
    shown: Path
    problem: str = ""


@dataclass
class Collector:
    """Finds all that was handed in.

    A file that is no notebook counts where its learner has none, or none of the lab in the file's name. A folder or
    archive in which nothing counts is told too, so that nobody's work is passed over without a word.

    Attributes:
        labs: Names of the labs.
        scratch: Where archives are unpacked.
        room: Entries and bytes that the archive at hand may still hold.
    """

    labs: Sequence[str]
    scratch: Path
    room: tuple[int, int] = (0, 0)

    def in_folder(self, folder: Path, shown: Path, owner: str = "", depth: int = 0) -> Iterator[HandedIn]:
        """All below a folder; `owner` is the learner it belongs to, '' if there are several."""
        learners = {path: learner_of(path, folder, self.labs, owner) for path in _files_below(folder)}
        notebooks = {(learner, _lab_in(path)) for path, learner in learners.items() if path.suffix == ".ipynb"}
        with_notebooks = {learner for learner, _ in notebooks}
        for path, learner in learners.items():
            name = shown / path.relative_to(folder)
            is_other = path.suffix != ".ipynb" and learner in with_notebooks
            if is_archive(path):
                yield from self.in_archive(path, name, learner, depth)
            elif not is_other or (_lab_in(path) and (learner, _lab_in(path)) not in notebooks):
                yield HandedIn(learner, path, name)
        told = {path.relative_to(folder).parts[0] for path in learners if path != folder}
        for empty in sorted(path for path in folder.iterdir() if path.is_dir() and not owner):
            if empty.name not in told and not FOLDERS_PASSED_OVER.match(empty.name):
                learner = learner_of(empty / "_", folder, self.labs)
                yield HandedIn(learner, empty, shown / empty.name, f"{shown / empty.name} holds no notebook to grade")

    def in_archive(
        self, archive: Path, shown: Path, owner: str, depth: int = 0, is_collection: bool = False
    ) -> Iterator[HandedIn]:
        """All in an archive: its owner's, or of several learners if it is a collection or holds several archives."""
        self.room = self.room if depth else (MAX_ENTRIES, MAX_MIB * 2**20)
        problem, inside = f"{shown} holds no notebook to grade", Path(mkdtemp(dir=self.scratch))
        try:
            if depth > MAX_DEPTH:
                raise NotGradableError(f"{archive} is in an archive in an archive in an archive; unpack it")
            self._unpack(archive, inside)
        except NotGradableError as error:
            problem = str(error)
        else:
            is_collection = is_collection or sum(map(is_archive, _files_below(inside))) > 1
            for one in self.in_folder(inside, shown, "" if is_collection else owner, depth + 1):
                problem = ""
                yield one
        if problem:
            yield HandedIn(owner, archive, shown, problem)

    def _unpack(self, archive: Path, into: Path) -> None:
        """Extract all that is not passed over.

        Raises:
            NotGradableError: it is no archive, is damaged or has a password, or holds too much.
        """
        try:
            with opened(archive) as file, ZipFile(file) as entries:
                members = [m for m in entries.infolist() if not m.is_dir() and not _is_passed_over(m.filename)]
                self.room = self.room[0] - len(members), self.room[1] - sum(m.file_size for m in members)
                if min(self.room) < 0:
                    limits = f"{MAX_ENTRIES:,} files or {MAX_MIB:,} MiB"
                    raise NotGradableError(f"{archive} holds more than {limits}, archives inside it included")
                if any(m.filename.count("/") >= MAX_PARTS for m in members):
                    raise NotGradableError(f"{archive} has folders nested more than {MAX_PARTS} deep")
                entries.extractall(into, members)  # leaves out '..' and a leading '/'
        except NotGradableError:
            raise
        except Exception as error:  # of every kind: a password, a codec's own (LZMAError), a disk that is full
            raise NotGradableError(f"{archive} cannot be unpacked: {error}") from None


def is_archive(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and not os.path.isdir(path)


def learner_of(path: Path, folder: Path, labs: Sequence[str], owner: str = "") -> str:
    """As a learning platform writes it; else the owner, the folder it is in, or its name without the lab's."""
    parts = path.relative_to(folder).parts
    for part in parts:
        if found := PLATFORM.fullmatch(part):
            return found["learner"]
    if owner or len(parts) > 1:
        return owner or parts[0]
    for lab in labs:
        rest = path.stem.replace(lab, "").strip("-_ .")
        if lab in path.stem and rest:
            return rest
    return path.stem


def _is_passed_over(name: str) -> bool:
    *folders, _ = PurePosixPath(name).parts
    return any(map(FOLDERS_PASSED_OVER.match, folders))


def _files_below(folder: Path) -> list[Path]:
    """Files, links to folders, folders named like a notebook, and folders that cannot be opened."""
    found, shut = list[Path](), list[Path]()
    for parent, folders, files in os.walk(folder, onerror=lambda error: shut.append(Path(error.filename))):
        folders[:] = [name for name in folders if not FOLDERS_PASSED_OVER.match(name)]
        found += [Path(parent, name) for name in files if not FILES_PASSED_OVER.match(name)]
        found += [p for p in (Path(parent, f) for f in folders) if p.suffix == ".ipynb" or os.path.islink(p)]
    return sorted([*found, *shut])


def _lab_in(path: Path) -> str:
    """'01' of '01_demo.html'; '' where no lab's number is in the name."""
    found = re.search(r"(?<!\d)(\d\d)_", path.name)
    return found[1] if found else ""
