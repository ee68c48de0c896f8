"""What a folder promises beyond the conformance suite: a process that dies, a disk that is full, and files that are none of its own."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreDenied, StoreMisused, StoreUnavailable
from syncline.store.local import LocalStore
from syncline.store.retrying import RetryingStore

DIE_AT_FSYNC = """
import os, signal, sys
from pathlib import Path
from syncline.store.local import LocalStore

root, call, nth, when = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
left = nth

def fsync(fd):
    global left
    left -= 1
    if when == "after":
        os.fsync(fd)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.fsync(fd)

store = LocalStore(root, fsync=fsync)
if call == "create":
    store.put_if_absent("run/new/object", b"new" * 1000)
elif call == "large":
    store.put_large("run/new/object", b"new" * 1000)
elif call == "put":
    store.put("run/head", b"new" * 1000)
elif call == "replace":
    store.compare_and_put("run/head", b"new" * 1000, etag=store.head("run/head").etag)
elif call == "delete":
    store.delete("run/head")
"""


@pytest.mark.parametrize("call", ["create", "large", "put", "replace", "delete"])
def test_a_process_killed_at_any_write_leaves_old_or_new_and_nothing_else(tmp_path: Path, call: str) -> None:
    killed = finished = 0
    for when in ("before", "after"):
        for nth in range(1, 10):
            root = tmp_path / f"{when}{nth}"
            LocalStore(root).put("run/head", b"old")
            done = subprocess.run([sys.executable, "-c", DIE_AT_FSYNC, str(root), call, str(nth), when], check=False)
            assert done.returncode in (0, -signal.SIGKILL)
            killed += done.returncode != 0
            _check_after_death(root, call, finished=done.returncode == 0)
            if done.returncode == 0:
                finished += 1
                break
    assert 2 == finished
    assert killed >= 2


def _check_after_death(root: Path, call: str, *, finished: bool) -> None:
    store = LocalStore(root)
    held: dict[str, bytes] = {}
    for info in store.list_after(""):
        found = store.get(info.key, max_bytes=10_000)
        assert found is not None
        held[info.key] = found.data
    old, new = {"run/head": b"old"}, b"new" * 1000
    after = {
        "create": {**old, "run/new/object": new},
        "large": {**old, "run/new/object": new},
        "put": {"run/head": new},
        "replace": {"run/head": new},
        "delete": {},
    }[call]
    assert held in ([after] if finished else [old, after])
    assert [] == list((root / ".syncline" / "tmp").iterdir())
    store.put("run/head", b"the lock is free")


def test_what_a_dead_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1")
    temporary = tmp_path / ".syncline" / "tmp"
    (temporary / "dead").write_bytes(b"half")
    living = os.open(temporary / "living", os.O_RDWR | os.O_CREAT)
    fcntl.flock(living, fcntl.LOCK_EX)
    assert ["a"] == [i.key for i in store.list_after("")]
    LocalStore(tmp_path)
    assert ["living"] == [p.name for p in temporary.iterdir()]
    os.close(living)
    LocalStore(tmp_path)
    assert [] == list(temporary.iterdir())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_unavailable_and_changes_nothing(tmp_path: Path, error: int) -> None:
    LocalStore(tmp_path).put("head", b"old")

    def fsync(_: int) -> None:
        raise OSError(error, os.strerror(error))

    store = LocalStore(tmp_path, fsync=fsync)
    etag = store.head("head").etag
    for write in (
        lambda: store.put("head", b"new"),
        lambda: store.put_if_absent("other", b"new"),
        lambda: store.compare_and_put("head", b"new", etag=etag),
        lambda: store.put_large("other", b"new"),
    ):
        with pytest.raises(StoreUnavailable, match="disk is full"):
            write()
    assert [("head", etag)] == [(i.key, i.etag) for i in store.list_after("")]
    assert [] == list((tmp_path / ".syncline" / "tmp").iterdir())


def test_a_disk_that_fails_is_unavailable(tmp_path: Path) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(StoreUnavailable, match="check the disk"):
        LocalStore(tmp_path, fsync=fsync).put("a", b"1")


def test_a_folder_that_may_not_be_written_is_denied(tmp_path: Path) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.raises(StoreDenied, match="permission"):
        LocalStore(tmp_path, fsync=fsync).put("a", b"1")


def test_a_reader_makes_no_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "none")
    assert [] == list(store.list_after(""))
    with pytest.raises(NotFound):
        store.get("a", max_bytes=1)
    store.delete("a")
    assert not (tmp_path / "none").exists()


def test_no_key_is_a_folder_of_another(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    for call in (
        lambda: store.put_if_absent("a", b"2"),
        lambda: store.put("a", b"2"),
        lambda: store.put_if_absent("a/b/c", b"2"),
        lambda: store.put("a/b/c", b"2"),
    ):
        with pytest.raises(StoreMisused):
            call()
    assert ["a/b"] == [i.key for i in store.list_after("")]


def test_a_listing_passes_over_files_that_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("run/a", b"1")
    (tmp_path / "run" / ".nfs0001").write_bytes(b"x")
    (tmp_path / "run" / "notes of mine.txt").write_bytes(b"x")
    (tmp_path / "lost+found here").mkdir()
    os.mkfifo(tmp_path / "run" / "pipe")
    assert ["run/a"] == [i.key for i in store.list_after("")]


def test_a_delete_leaves_no_empty_folders(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("run/main/anchors/000000000001/nonce/file", b"1")
    store.put("run/main/head", b"1")
    store.delete("run/main/anchors/000000000001/nonce/file")
    assert ["head"] == [p.name for p in (tmp_path / "run" / "main").iterdir()]


def test_an_etag_never_returns_for_other_bytes(tmp_path: Path) -> None:
    """Inodes are used again at once and a clock tick is long: size, inode and time alone would meet again here."""
    store = LocalStore(tmp_path, rng=random.Random(1), fsync=lambda _: None)
    etags = [store.put("head", b"%04d" % n) for n in range(600)]
    assert len(etags) == len(set(etags))


def test_an_etag_survives_opening_the_store_again(tmp_path: Path) -> None:
    etag = LocalStore(tmp_path).put("head", b"1")
    again = LocalStore(tmp_path)
    assert etag == again.head("head").etag
    again.compare_and_put("head", b"2", etag=etag)
    with pytest.raises(HeadMoved):
        again.compare_and_put("head", b"3", etag=etag)


def test_two_processes_never_lose_an_increment(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("count", b"0")
    script = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from syncline.errors import HeadMoved
from syncline.store.local import LocalStore

store = LocalStore(Path(sys.argv[1]))
done = 0
while done < 50:
    found = store.get("count", max_bytes=10)
    try:
        store.compare_and_put("count", b"%d" % (int(found.data) + 1), etag=found.etag)
        done += 1
    except HeadMoved:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    assert [0, 0] == [process.wait(60) for process in processes]
    found = store.get("count", max_bytes=10)
    assert found is not None
    assert b"100" == found.data


def test_a_source_cut_while_it_is_copied_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(1000))
    store = LocalStore(tmp_path / "store", rng=_Cutting(source))
    with pytest.raises(StoreMisused, match="cut"):
        store.put_large("a", source)
    assert [] == list(store.list_after(""))


class _Cutting(random.Random):
    """Cuts the source when the store draws the temporary file's name: after it was opened, before it is copied."""

    def __init__(self, source: Path) -> None:
        super().__init__(1)
        self._source = source

    def getrandbits(self, k: int, /) -> int:
        os.truncate(self._source, 10)
        return super().getrandbits(k)


def test_a_writer_that_finds_the_key_taken_does_not_copy_its_source(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("a", b"1")
    source = tmp_path / "source"
    os.mkfifo(source)  # reading it would wait for ever
    with pytest.raises(AlreadyExists):
        store.put_large("a", source)


def test_a_key_that_two_delete_at_once_is_no_error_for_either(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b/c", b"1")
    with (tmp_path / ".syncline" / "lock").open() as held, ThreadPoolExecutor(2) as threads:
        fcntl.flock(held, fcntl.LOCK_EX)
        both = [threads.submit(store.delete, "a/b/c") for _ in range(2)]
        time.sleep(0.3)  # both have seen the object and wait for the lock
        fcntl.flock(held, fcntl.LOCK_UN)
        assert [None, None] == [one.result(30) for one in both]
    assert [] == list(store.list_after(""))


def test_a_pipe_among_the_objects_is_no_object_and_nobody_waits_for_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(NotFound):
        store.get("a/pipe", max_bytes=10)
    assert ["a/b"] == [info.key for info in store.list_after("a/")]


def file_in_the_way(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file"


def below_a_file(folder: Path) -> Path:
    return file_in_the_way(folder) / "store"


def broken_link(folder: Path) -> Path:
    (folder / "link").symlink_to("nowhere")
    return folder / "link" / "store"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (file_in_the_way, "File exists"),
        (below_a_file, "Not a directory|File exists"),
        (broken_link, "No such file or directory|File exists"),
        (lambda _: Path("/proc/store"), "No such file or directory"),
    ],
    ids=["file", "below a file", "broken link", "no place for files"],
)
def test_a_folder_that_cannot_be_made_is_named_and_not_waited_for(
    tmp_path: Path, place: Callable[[Path], Path], said: str
) -> None:
    root, clock = place(tmp_path), ManualClock()
    store = RetryingStore(LocalStore(root), clock=clock, rng=random.Random(1))
    began = clock.monotonic()
    for write in (store.put, store.put_if_absent, store.put_large):
        with pytest.raises(StoreMisused, match=f"file://{root}: the store's folder cannot be made: ({said})"):
            write("run/object", b"1")
    with pytest.raises(StoreMisused, match="cannot be made"):
        store.compare_and_put("run/head", b"1", etag=None)
    assert began == clock.monotonic()


@pytest.mark.parametrize("refused", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_made_is_denied_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def mkdir(self: Path, *_: object) -> None:
        raise OSError(refused, os.strerror(refused), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StoreDenied, match=f"the store's folder cannot be made: {os.strerror(refused)}: .*store"):
        LocalStore(tmp_path / "store").put("run/object", b"1")


def test_a_disk_that_is_full_before_the_store_has_a_folder_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(self: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        LocalStore(tmp_path / "store").put("run/object", b"1")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "object").write_bytes(b"not the store's")
    return folder


def test_a_link_to_a_folder_outside_is_followed_by_nothing(tmp_path: Path, outside: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("run/object", b"mine")
    (tmp_path / "store/run/way").symlink_to(outside)
    assert ["run/object"] == [info.key for info in store.list_after("")]
    assert [] == list(store.list_after("run/way/"))
    calls: list[Callable[[str], object]] = [
        store.head,
        store.delete,
        lambda key: store.get(key, max_bytes=100),
        lambda key: store.get_range_into(key, 0, bytearray(1)),
        lambda key: store.put(key, b"new"),
        lambda key: store.put_if_absent(key, b"new"),
        lambda key: store.put_large(key, b"new"),
        lambda key: store.compare_and_put(key, b"new", etag=None),
    ]
    for call in calls:
        for key in ("run/way/object", "run/way/new/object"):
            with pytest.raises(StoreMisused, match=r"run/way/.*object lies behind the link .*/run/way"):
                call(key)
    assert ["object"] == [entry.name for entry in outside.iterdir()]


def test_a_link_to_a_file_is_no_object(tmp_path: Path, outside: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("run/object", b"mine")
    link = tmp_path / "store/run/link"
    link.symlink_to(outside / "object")
    assert ["run/object"] == [info.key for info in store.list_after("")]
    for look in (store.head, lambda key: store.get(key, max_bytes=100)):
        with pytest.raises(NotFound):
            look("run/link")
    with pytest.raises(StoreMisused, match="run/link is a link"):
        store.put_if_absent("run/link", b"new")
    with pytest.raises(HeadMoved):
        store.compare_and_put("run/link", b"new", etag="something")
    store.delete("run/link")
    assert link.is_symlink()
    store.put("run/link", b"an object now")
    assert (b"not the store's", b"an object now") == ((outside / "object").read_bytes(), link.read_bytes())


def test_links_in_a_circle_end_no_listing_in_eternity(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("run/object", b"mine")
    for name in ("a", "b", "c"):
        (tmp_path / "store/run" / name).symlink_to(tmp_path / "store")
    assert ["run/object"] == [info.key for info in store.list_after("")]


def test_the_root_itself_may_be_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "store").symlink_to(outside)
    store = LocalStore(tmp_path / "store")
    store.put("run/object", b"mine")
    assert ["object", "run/object"] == [info.key for info in store.list_after("")]
    assert b"mine" == (outside / "run/object").read_bytes()
