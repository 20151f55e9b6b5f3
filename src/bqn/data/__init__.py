"""Data: sets by name or from your own files, splits, augmentation, standardization."""

from bqn.data._augment import augment, to_input
from bqn.data._catalog import SetInfo
from bqn.data._dataset import DataError, Dataset, Split, Task
from bqn.data._fetch import FileReport, available, fetch, verify
from bqn.data._load import load
from bqn.data._root import data_root
from bqn.data._split import split_validation
from bqn.data._standardize import Standardizer

__all__ = [
    "DataError",
    "Dataset",
    "FileReport",
    "SetInfo",
    "Split",
    "Standardizer",
    "Task",
    "augment",
    "available",
    "data_root",
    "fetch",
    "load",
    "split_validation",
    "to_input",
    "verify",
]
