"""Sets come from their addresses into the data root, whole or not at all, and are checked by content."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest

from bqn.data import DataError, available, fetch, load, verify
from bqn.data._catalog import CATALOG, Download, Entry, File
from bqn.data._checksums import CONTENTS, Content
from bqn.data._cifar import BATCHES
from bqn.data._unpack import as_it_is, from_tar
from tests.data.files import cifar_bytes, write_idx_set
from tests.data.server import Site


def known(data: bytes) -> Content:
    return Content(len(data), hashlib.sha256(data).hexdigest())


def install(monkeypatch: pytest.MonkeyPatch, name: str, downloads: list[Download]) -> None:
    monkeypatch.setitem(CATALOG, name, dataclasses.replace(CATALOG[name], downloads=tuple(downloads)))


@pytest.fixture
def mnist(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A small MNIST is published on the site."""
    published = tmp_path / "published"
    write_idx_set(published)
    downloads = []
    for official in CATALOG["mnist"].downloads:
        (file,) = official.files
        page = (published / f"{file.name}.gz").read_bytes()
        site.pages[f"/mnist/{file.name}.gz"] = page
        own = dataclasses.replace(file, content=known(gzip.decompress(page)))
        checksum = f"md5:{hashlib.md5(page).hexdigest()}"
        url = f"{site.address}/mnist/{file.name}.gz"
        downloads.append(Download((url,), checksum, (own,), partial(as_it_is, file.name)))
    install(monkeypatch, "mnist", downloads)
    return site


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def states(name: str, root: Path) -> list[str]:
    return [report.state for report in verify(name, root)]


def test_load_brings_what_is_missing_once(mnist: Site, root: Path) -> None:
    data = load("mnist", root=root)
    assert (data.input_shape, len(data.train), len(data.test)) == ((1, 28, 28), 12, 5)
    assert len(mnist.requests) == 4
    load("mnist", root=root)
    assert len(mnist.requests) == 4
    assert states("mnist", root) == ["ok"] * 4


def test_fetch_reports_on_every_file(mnist: Site, root: Path) -> None:
    assert states("mnist", root) == ["missing"] * 4
    seen: list[str] = []
    reports = fetch("mnist", root, lambda name, done, total: seen.append(name))
    assert [report.state for report in reports] == ["ok"] * 4
    assert reports[0].path == root / "mnist" / "train-images-idx3-ubyte.gz"
    assert len(set(seen)) == 4
    assert [path.name for path in (root / ".partial").iterdir() if path.suffix != ".lock"] == []


def test_any_compression_and_none_pass_verify(mnist: Site, root: Path) -> None:
    fetch("mnist", root)
    first, second, third, _ = (report.path for report in verify("mnist", root))
    data = gzip.decompress(first.read_bytes())
    first.write_bytes(gzip.compress(data, 1))
    second.with_suffix("").write_bytes(gzip.decompress(second.read_bytes()))
    second.unlink()
    dotted = third.with_name("t10k-images.idx3-ubyte")
    dotted.write_bytes(gzip.decompress(third.read_bytes()))
    third.unlink()
    reports = verify("mnist", root)
    assert [report.state for report in reports] == ["ok"] * 4
    assert reports[2].path == dotted
    assert len(load("mnist", root=root, download=False).train) == 12


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (lambda data: data[:-20], "truncated gzip data"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "bytes, expected"),
        (lambda data: gzip.compress(gzip.decompress(data) + b"x"), "more than the expected"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1] + b"\xff"), "sha256"),
        (lambda data: b"", "0 bytes, expected"),
    ],
)
def test_damage_is_found_and_mended(mnist: Site, root: Path, damage: object, detail: str) -> None:
    fetch("mnist", root)
    path = root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    damaged = verify("mnist", root)[3]
    assert (damaged.path, damaged.state) == (path, "damaged")
    assert detail in damaged.detail
    mnist.requests.clear()
    assert [report.state for report in fetch("mnist", root)] == ["ok"] * 4
    assert [page for page, _ in mnist.requests] == ["/mnist/t10k-labels-idx1-ubyte.gz"]


def test_load_does_not_replace_files_of_the_user(mnist: Site, root: Path) -> None:
    own = write_idx_set(root / "mnist", train=7, test=5)
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    data = load("mnist", root=root)
    assert data.train.x[:, 0].tolist() == own["train-images-idx3-ubyte"].tolist()
    assert len(mnist.requests) == 1


def test_offline_one_line_tells_files_places_and_addresses(mnist: Site, root: Path) -> None:
    mnist.pages.clear()
    with pytest.raises(DataError) as caught:
        load("mnist", root=root)
    message = str(caught.value)
    assert message.startswith("mnist: missing train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-")
    assert f"looked in {root / 'mnist'};" in message
    assert f"published at {mnist.address}/mnist/;" in message
    assert "download failed: " in message
    assert "404" in message
    assert "\n" not in message


def test_the_official_addresses_are_told_when_download_is_off(root: Path) -> None:
    with pytest.raises(DataError, match=r"cifar10: missing data_batch_1\.bin") as caught:
        load("cifar10", root=root, download=False)
    for words in (
        f"looked in {root / 'cifar10' / 'cifar-10-batches-bin'}, {root / 'cifar-10-batches-bin'};",
        "published at https://www.cs.toronto.edu/~kriz/;",
        "not downloaded, as download is off",
    ):
        assert words in str(caught.value)
    assert not root.exists()


def test_without_pooch_the_error_names_files_and_extra(
    mnist: Site, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r'missing train-images.*pip install "bqn\[data\]"'):
        load("mnist", root=root)


def test_a_root_that_cannot_be_written_is_told(mnist: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"download failed: .*Not a directory"):
        load("mnist", root=tmp_path / "file")


def test_what_was_published_wrongly_is_not_kept(mnist: Site, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address serves what its checksum says, but the content is not that of the set."""
    downloads = list(CATALOG["mnist"].downloads)
    other = dataclasses.replace(downloads[0].files[0], content=Content(9424, "0" * 64))
    downloads[0] = dataclasses.replace(downloads[0], files=(other,))
    install(monkeypatch, "mnist", downloads)
    with pytest.raises(DataError, match=r"sha256 .*, expected 0000"):
        load("mnist", root=root)
    assert not list(root.glob("mnist/*"))


def test_several_processes_download_once(mnist: Site, root: Path) -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(load("mnist", root=root).train))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [12] * 4
    assert len(mnist.requests) == 4


def test_an_archive_becomes_the_official_layout(site: Site, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = {name: cifar_bytes(3, seed) for seed, name in enumerate(BATCHES)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in {"readme.html": b"hello", **batches}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    site.pages["/cifar-10-binary.tar.gz"] = buffer.getvalue()
    (official,) = CATALOG["cifar10"].downloads
    files = tuple(dataclasses.replace(file, content=known(batches[file.name])) for file in official.files)
    sizes = {f"cifar-10-batches-bin/{name}": len(data) for name, data in batches.items()}
    checksum = f"md5:{hashlib.md5(buffer.getvalue()).hexdigest()}"
    url = f"{site.address}/cifar-10-binary.tar.gz"
    install(monkeypatch, "cifar10", [Download((url,), checksum, files, partial(from_tar, sizes))])
    data = load("cifar10", root=root)
    assert (data.input_shape, len(data.train), len(data.test)) == ((3, 32, 32), 15, 3)
    assert len(site.requests) == 1
    assert sorted(path.name for path in (root / "cifar10" / "cifar-10-batches-bin").iterdir()) == sorted(BATCHES)
    (root / "cifar10" / "cifar-10-batches-bin").rename(root / "cifar-10-batches-bin")
    assert states("cifar10", root) == ["ok"] * 6


def test_only_the_files_of_the_split_are_needed(site: Site, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"data.txt": b"1 2\n3 4\n5 6\n", "index_features.txt": b"0\n", "index_target.txt": b"1\n"}
    for split in range(2):
        pages |= {f"index_train_{split}.txt": b"0\n1\n", f"index_test_{split}.txt": b"2\n"}
    downloads = []
    for official in CATALOG["kin8nm"].downloads:
        (file,) = official.files
        if file.name in pages:
            site.pages[f"/{file.name}"] = pages[file.name]
            own = dataclasses.replace(file, content=known(pages[file.name]))
            checksum = f"sha256:{own.content.sha256}"
            downloads.append(Download((f"{site.address}/{file.name}",), checksum, (own,), official.unpack))
    install(monkeypatch, "kin8nm", downloads)
    assert load("kin8nm", root=root, split=1).test.y.tolist() == [[6.0]]
    assert len(site.requests) == 5
    assert [report.state for report in fetch("kin8nm", root)] == ["ok"] * 7
    assert len(site.requests) == 7


def test_sets_without_files_have_nothing_to_fetch(root: Path) -> None:
    assert fetch("digits", root) == verify("digits", root) == []
    assert not root.exists()


def test_the_catalog_is_complete_and_consistent() -> None:
    infos = {info.name: info for info in available()}
    assert list(infos) == list(CATALOG)
    assert "encodes race" in infos["boston"].description
    assert "encodes race" in infos["bostonHousing"].description
    listed = [file for entry in CATALOG.values() for file in entry.files()]
    assert {file.content for file in listed} == set(CONTENTS.values())
    for entry in CATALOG.values():
        check_entry(entry)


def check_entry(entry: Entry) -> None:
    assert entry.info.licence
    assert entry.info.size
    names = [file.name for file in entry.files()]
    assert len(set(names)) == len(names)
    for item in entry.downloads:
        algorithm, _, digest = item.checksum.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]
        assert all(url.startswith(("https://", "http://")) for url in item.urls)
        assert item.urls[0].startswith("https://")
        assert all(isinstance(file, File) and file.content.size > 0 for file in item.files)


def test_an_unknown_name_suggests_the_nearest() -> None:
    for name, nearest in (("mnsit", "mnist"), ("CIFAR10", "cifar10"), ("bostonhousing", "bostonHousing")):
        with pytest.raises(DataError, match=f"no data set is called '{name}', did you mean {nearest}"):
            verify(name)
    with pytest.raises(DataError, match=r"no data set is called 'zzz' \(known are digits, "):
        fetch("zzz")
