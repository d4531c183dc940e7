"""Clients' and batches' files by owner's key, within a bound. Changes block; look-ups are thread-safe."""

import fcntl
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Generic, Literal, TypeVar

import msgspec

from models.files import replace_file

MOST_FILES = 10_000  # of all owners


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int  # seconds since 1970
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class StoredFile(FileObject, frozen=True, kw_only=True):
    """The last field is hidden from its owner."""

    holder: str | None  # API key's name; None without keys


class NoSuchFile(Exception):
    """No file has this id, or it is another key's."""


R = TypeVar("R", bound=msgspec.Struct)


class RecordFolder(Generic[R]):
    """A JSON file for each record. Blocks."""

    def __init__(self, folder: Path, kind: type[R]) -> None:
        """Raises OSError."""
        self._folder, self._kind = folder, kind
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, name: str, record: R) -> None:
        """On the disk on return."""
        with replace_file(self._folder / f"{name}.json") as file:
            file.write(msgspec.json.encode(record))

    def remove(self, name: str) -> None:
        (self._folder / f"{name}.json").unlink(missing_ok=True)

    def load(self) -> list[R]:
        """Invalid files are left out."""
        found: list[R] = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=self._kind))
        return found


class FileStore:
    """Content is written before its record; a crash leaves only remains, removed at the next start."""

    def __init__(self, folder: Path, capacity: int) -> None:
        """`capacity` in bytes. Raises OSError."""
        self._folder, self._capacity = folder, capacity
        self._records = RecordFolder(folder, StoredFile)
        self._files = {file.id: file for file in self._records.load() if self.path(file.id).exists()}
        self._drafts: dict[str, str | None] = {}  # owners
        self._lock = threading.Lock()  # of what follows
        self._sizes: dict[str, int] = {}  # bytes of each content, and of each owner
        self._contents, self._bytes = Counter[str | None](), Counter[str | None]()
        for file in self._files.values():
            self._count(file.id, file.holder, file.bytes)

    def _count(self, name: str, holder: str | None, size: int | None) -> None:
        """Update a content's size; None: it is gone."""
        with self._lock:
            before = self._sizes.pop(name, None)
            if size is not None:
                self._sizes[name] = size
            self._contents[holder] += (size is not None) - (before is not None)
            self._bytes[holder] += (size or 0) - (before or 0)

    def room_of(self, holder: str | None, times: int = 1) -> int:
        """Bytes left of `times` the capacity, 0 beyond the number of files. One of several keys has half at most."""
        part, room = 1 if holder is None else 2, times * self._capacity
        with self._lock:
            if self._contents[holder] >= MOST_FILES // part or self._contents.total() >= MOST_FILES:
                return 0
            return max(0, min(room // part - self._bytes[holder], room - self._bytes.total()))

    def take_room(self, draft: str, count: int) -> bool:
        """Reserve bytes for a draft; False where they do not fit."""
        holder = self._drafts[draft]
        fits = count <= self.room_of(holder)
        if fits:
            self.note_answers(draft, holder, count)
        return fits

    def may_answer(self, holder: str | None) -> bool:
        """Answers may take as much again as uploads."""
        return self.room_of(holder, times=2) > 0

    def note_answers(self, name: str, holder: str | None, count: int) -> None:
        """Count bytes of a content that `add` makes a file."""
        self._count(name, holder, self._sizes.get(name, 0) + count)

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.data"

    def remove_rests(self, made: Mapping[str, str | None]) -> None:
        """Remove contents without a file, except those in `made`, by owner."""
        for content in self._folder.glob("*.data"):
            name = content.stem
            if name in made and name not in self._files:
                self.note_answers(name, made[name], content.stat().st_size)
            elif name not in self._files:
                content.unlink(missing_ok=True)

    @contextmanager
    def draft(self, holder: str | None) -> Iterator[tuple[str, BinaryIO]]:
        """An id and a content to write; becomes a file by `keep`, else it is removed."""
        name = new_file_id()
        self._drafts[name] = holder
        self._count(name, holder, 0)
        try:
            with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as content:
                yield name, content
        finally:
            with suppress(NoSuchFile):
                self._take_draft(name)
                self._drop(name, holder)

    def keep(self, name: str, filename: str, purpose: str) -> StoredFile:
        """Raises NoSuchFile where the draft is gone, and OSError."""
        holder = self._take_draft(name)
        try:
            return self.add(name, filename, purpose, holder)
        except OSError:
            self._drop(name, holder)
            raise

    def _take_draft(self, name: str) -> str | None:
        try:
            return self._drafts.pop(name)
        except KeyError:
            raise NoSuchFile(name) from None

    def _drop(self, name: str, holder: str | None) -> None:
        self.path(name).unlink(missing_ok=True)
        self._count(name, holder, None)

    def add(self, name: str, filename: str, purpose: str, holder: str | None) -> StoredFile:
        with open(self.path(name), "rb") as content:
            os.fsync(content)  # before its record
            size = os.fstat(content.fileno()).st_size
        now = int(time.time())
        file = StoredFile(id=name, bytes=size, created_at=now, filename=filename, purpose=purpose, holder=holder)
        self._records.save(name, file)
        self._count(name, holder, size)
        self._files[name] = file
        return file

    def find(self, name: str, holder: str | None) -> StoredFile:
        """The owner's file; raises NoSuchFile."""
        file = self._files.get(name)
        if file is None or file.holder != holder:
            raise NoSuchFile(name)
        return file

    def has(self, name: str) -> bool:
        return name in self._files

    def all_of(self, holder: str | None) -> list[StoredFile]:
        """The key's, latest first."""
        own = (file for file in tuple(self._files.values()) if file.holder == holder)
        return sorted(own, key=lambda file: (file.created_at, file.id), reverse=True)

    def remove(self, name: str, holder: str | None) -> None:
        """The owner's file; raises NoSuchFile."""
        self.find(name, holder)
        self._records.remove(name)
        self._drop(name, holder)
        self._files.pop(name, None)


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


@contextmanager
def hold_folder(folder: Path) -> Iterator[str | None]:
    """Lock a folder against other servers; yields why it cannot be used, or None."""
    with ExitStack() as stack:
        obstacle: str | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fcntl.flock(stack.enter_context(open(folder / "lock", "wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            obstacle = "is held by another server"
        except OSError as error:
            obstacle = f"cannot be written: {error.strerror}"
        yield obstacle
