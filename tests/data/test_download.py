"""Downloads: verified, resumed, bounded, from the first address that works."""

from __future__ import annotations

import hashlib
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from bqn.data import DataError
from bqn.data._download import download
from tests.data.server import Site

DATA = np.random.default_rng(0).bytes(1_000_000)
CHECKSUM = f"md5:{hashlib.md5(DATA).hexdigest()}"
LIMIT = 2_000_000


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "file.bin"


@pytest.fixture
def url(site: Site) -> str:
    site.pages["/file"] = DATA
    return f"{site.address}/file"


def leave_part(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name("file.bin.part").write_bytes(data)


def only_the_target_is_there(target: Path) -> bool:
    return target.read_bytes() == DATA and [path.name for path in target.parent.iterdir()] == [target.name]


def test_brings_the_file_and_nothing_else(
    site: Site, url: str, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)
    assert site.requests == [("/file", None)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("checksum", [CHECKSUM, f"sha256:{hashlib.sha256(DATA).hexdigest()}"])
def test_a_file_that_is_there_is_not_asked_for(site: Site, url: str, target: Path, checksum: str) -> None:
    for _ in range(2):
        download([url], checksum, target, LIMIT)
    assert len(site.requests) == 1


def test_progress_ends_with_all_bytes(url: str, target: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    download([url], CHECKSUM, target, LIMIT, lambda *call: calls.append(call))
    assert calls[-1] == ("file.bin", len(DATA), len(DATA))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_a_broken_connection_is_taken_up_again(site: Site, url: str, target: Path) -> None:
    site.cuts = [400_000, 300_000]
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) for _, asked in site.requests if asked]
    assert len(site.requests) == 3
    assert 0 < starts[0] <= 400_000 < starts[1] <= 700_000


def test_a_part_of_an_earlier_process_is_continued(site: Site, url: str, target: Path) -> None:
    leave_part(target, DATA[:600_000])
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)
    assert site.requests == [("/file", "bytes=600000-")]


def test_a_part_that_is_whole_needs_no_more(site: Site, url: str, target: Path) -> None:
    leave_part(target, DATA)
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * 1_500_000])
def test_a_part_of_something_else_is_dropped(site: Site, url: str, target: Path, part: bytes) -> None:
    leave_part(target, part)
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)


def test_a_server_without_ranges_starts_over(site: Site, url: str, target: Path) -> None:
    site.ranges = False
    site.cuts = [400_000]
    download([url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)


def test_wrong_bytes_are_never_kept(site: Site, url: str, target: Path) -> None:
    site.pages["/file"] = DATA[:-1] + b"x"
    with pytest.raises(DataError, match="does not match the known hash"):
        download([url], CHECKSUM, target, LIMIT)
    assert list(target.parent.iterdir()) == []


def test_wrong_bytes_leave_the_old_file(site: Site, url: str, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"old")
    site.pages["/file"] = b"wrong"
    with pytest.raises(DataError):
        download([url], CHECKSUM, target, LIMIT)
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize("lengths", [True, False])
def test_an_endless_file_is_refused(site: Site, url: str, target: Path, lengths: bool) -> None:
    site.lengths = lengths
    received: list[int] = []
    with pytest.raises(DataError, match="more than the expected 500,000 bytes"):
        download([url], CHECKSUM, target, 500_000, lambda name, done, total: received.append(done))
    assert 400_000 < max(received) <= 500_000
    assert list(target.parent.iterdir()) == []


def test_the_next_address_is_tried(site: Site, url: str, target: Path) -> None:
    site.pages["/wrong"] = b"something else"
    download([f"{site.address}/none", f"{site.address}/wrong", url], CHECKSUM, target, LIMIT)
    assert only_the_target_is_there(target)


def test_all_failures_are_told_in_one_line(site: Site, target: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
    with pytest.raises(DataError) as caught:
        download([f"{site.address}/none", closed], CHECKSUM, target, LIMIT)
    message = str(caught.value)
    assert f"{site.address}/none: 404 Client Error" in message
    assert f"{closed}: " in message
    assert "Connection refused" in message
    assert "\n" not in message


def test_a_server_that_gives_nothing_is_not_asked_for_ever(site: Site, url: str, target: Path) -> None:
    site.cuts = [0] * 50
    with pytest.raises(DataError, match=r"broke|reset|aborted|IncompleteRead"):
        download([url], CHECKSUM, target, LIMIT)
    assert len(site.requests) == 1


def test_a_full_disk_is_told(url: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bqn.data._download._Transfer._write", full)
    with pytest.raises(DataError, match="No space left on device"):
        download([url], CHECKSUM, target, LIMIT)


def test_without_pooch_the_extra_is_named(url: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r'downloading needs pooch: pip install "bqn\[data\]"'):
        download([url], CHECKSUM, target, LIMIT)
