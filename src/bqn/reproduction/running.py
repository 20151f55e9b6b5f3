"""Carrying out what is planned: what is recorded is skipped, the rest is trained side by side, judged and put down."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bqn.atomic import write_atomic
from bqn.data import Dataset
from bqn.reproduction import recipes, records
from bqn.reproduction.cells import Cell
from bqn.reproduction.measuring import code, describe
from bqn.training import ConfigError, DivergedError, EpochRecord, Run, TrainConfig, load_data, load_run
from bqn.training.files import parse_object, read_text
from bqn.training.folder import RunFolder
from bqn.training.replicas import train_together
from bqn.training.surroundings import find_device

TOGETHER = 10
_FEWER = {"cifar10": 5}  # its networks fill a GPU sooner
_SHARE = "share.json"
_CODE = "code.json"

Report = Callable[[Cell, EpochRecord], None]
Done = Callable[[Cell, dict[str, Any]], None]


def run(
    cells: Iterable[Cell],
    *,
    out: str | Path = "results",
    work: str | Path | None = "runs/reproduce",
    device: str = "auto",
    together: int | None = None,
    root: str | Path | None = None,
    redo: bool = False,
    report: Report | None = None,
    done: Done | None = None,
    tick: Callable[[], None] | None = None,
) -> dict[Cell, dict[str, Any]]:
    """Train and judge all cells that have no record yet, and return the records of all.

    Parameters
    ----------
    cells : Cells
    out : folder of the records, `ARCHITECTURE-DATA/RECIPE/seed-N.json`
    work : folder or None
        Where runs are kept while they go on, so that one that was stopped continues; their best weights stay there.
        None keeps nothing.
    device : "auto", "cpu" or "cuda[:N]"
    together : int or None
        Runs that train side by side, 10 by default, 5 on CIFAR-10.
    root : folder of the data sets
    redo : bool
        Whether records that were made with other settings are replaced; otherwise they are an error.
    report : function of a Cell and an EpochRecord, called after each epoch
    done : function of a Cell and its record, called when that is written
    tick : function called between steps, which may raise KeyboardInterrupt

    Raises
    ------
    RecordError
        A record is damaged, or was made with other settings.
    """
    wanted = list(dict.fromkeys(cells))
    if together is not None and together < 1:
        raise ConfigError(f"together must be at least 1, got {together}")
    found, missing = sort_out(wanted, out, device, redo)
    code()  # as it is now: it is remembered, and records shall not name what is committed while they train
    if missing:
        Path(out).mkdir(parents=True, exist_ok=True)  # to be known before the work begins
    datasets: dict[str, Dataset] = {}
    for group in groups(missing, together):
        data = group[0].data
        if data not in datasets:
            datasets = {data: load_data(group[0].config(device), root)}  # one at a time
        for cell, document in _run_group(group, datasets[data], work, device, report, tick):
            records.write(cell.path(out), document)
            found[cell] = document
            if done is not None:
                done(cell, document)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {cell: found[cell] for cell in wanted}


def sort_out(
    cells: Sequence[Cell], out: str | Path, device: str = "auto", redo: bool = False
) -> tuple[dict[Cell, dict[str, Any]], list[Cell]]:
    """Records that are there, and cells that have none; with `redo` those with other settings count as having none."""
    found: dict[Cell, dict[str, Any]] = {}
    missing = []
    for cell in cells:
        config = cell.config(device)
        document = records.read(cell, out)
        differs = None if document is None else records.difference(document, config)
        if document is None or (differs and redo):
            missing.append(cell)
        elif differs:
            raise records.RecordError(
                f"{cell.path(out)} was made with {differs}; give --redo to replace it, or another folder"
            )
        else:
            found[cell] = document
    return found, missing


def groups(cells: Sequence[Cell], together: int | None = None) -> Iterator[list[Cell]]:
    """Cells that are trained side by side: of one architecture, data set and pace, a limited number."""

    def kind(cell: Cell) -> tuple[str, str, str]:
        return cell.data, cell.architecture, _pace(cell)

    order = list(dict.fromkeys(map(kind, cells)))
    for (data, _, _), alike in groupby(sorted(cells, key=lambda cell: order.index(kind(cell))), kind):
        members = list(alike)
        size = together or _FEWER.get(data, TOGETHER)
        yield from (members[start : start + size] for start in range(0, len(members), size))


def _pace(cell: Cell) -> str:
    """Which cells take equal time and may be charged equal parts of it.

    λ costs nothing; each number of levels stands alone, since times of levels are compared. Ideas, whose times nobody
    compares, share one group, but not with the recipe itself.
    """
    if cell.variant in recipes.IDEAS:
        return "idea"
    return cell.variant if "levels" in recipes.changes(cell.variant) else ""


def _run_group(
    group: Sequence[Cell],
    dataset: Dataset,
    work: str | Path | None,
    device: str,
    report: Report | None,
    tick: Callable[[], None] | None,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Train a group; then each cell with its record, one after the other."""
    configs = [cell.config(device) for cell in group]
    folders = None if work is None else [_folder(work, *pair) for pair in zip(group, configs, strict=True)]

    worked: set[int] = set()

    def tell(index: int, record: EpochRecord) -> None:
        worked.add(index)
        if folders is not None and record.epoch == 1:
            _keep(folders[index] / _CODE, code())
        if report is not None:
            report(group[index], record)

    runs = _train(configs, dataset, folders, tell, tick)
    trained = [index for index, run in enumerate(runs) if index in worked or isinstance(run, DivergedError)]
    shared = shares(runs, trained, folders, find_device(configs[0]).type == "cuda")
    for index, cell in enumerate(group):
        if tick is not None:
            tick()
        document = describe(cell, runs[index], dataset, *shared[index], device, tick)
        yield cell, document if folders is None else _by_the_code_that_began(document, folders[index])
        if folders is not None and isinstance(runs[index], Run):
            # It is as large as the run and of no use any more; the best weights stay.
            RunFolder(folders[index]).checkpoint.unlink(missing_ok=True)


class Share(NamedTuple):
    """What a run is charged for its training, and how many shared the device."""

    seconds: float
    together: int


def shares(
    runs: Sequence[Run | DivergedError], trained: Sequence[int], folders: Sequence[Path] | None, on_gpu: bool
) -> list[Share]:
    """What each run is charged: those that have been `trained` now, and all others what they were charged then."""
    together = len(trained) if on_gpu else 1  # elsewhere they take turns
    seconds = charged([runs[index] for index in trained], together > 1)
    found = {index: Share(each, together) for index, each in zip(trained, seconds, strict=True)}
    for index, folder in enumerate(folders or ()):
        if index in found:
            # judging may be interrupted, and then others are left to go on with
            _keep(folder / _SHARE, found[index]._asdict())
        else:
            found[index] = _kept(folder) or Share(charged([runs[index]], shared=False)[0], 1)
    return [found[index] for index in range(len(runs))]


def charged(runs: Sequence[Run | DivergedError], shared: bool) -> list[float]:
    """The seconds that each of some runs is charged for its training.

    Runs that share a device begin an epoch together and end it one after the other, so the longest of their times is
    that of all; they are charged parts of it by their epochs, one that failed for those that it began.
    """
    own = [[] if isinstance(run, DivergedError) else [row.seconds for row in run.history.records] for run in runs]
    if not shared:
        return [sum(each) for each in own]
    whole = sum(max(epoch) for epoch in zip_longest(*own, fillvalue=0.0))
    epochs = [run.epoch if isinstance(run, DivergedError) else len(run.history.records) for run in runs]
    return [whole * each / max(sum(epochs), 1) for each in epochs]


def _keep(path: Path, facts: Mapping[str, Any]) -> None:
    if path.parent.is_dir():
        write_atomic(path, json.dumps(facts).encode())


def _kept(folder: Path) -> Share | None:
    """The share that was put down when the run had just been trained; None if there is none."""
    try:
        found = _read(folder / _SHARE)
        return Share(float(found["seconds"]), int(found["together"]))
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is none of ours
        return None


def _by_the_code_that_began(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The record of a run that was stopped and went on with other code: it names that which trained its first epoch,
    and beside it that which finished and judged it."""
    try:
        began = _read(folder / _CODE)
    except (OSError, ValueError):  # there is none, or it is none of ours
        return document
    if began == code() or not isinstance(began.get("code"), str):
        return document
    others = {name: value for name, value in document.items() if name not in code()}
    return {**others, **{name: began[name] for name in ("code", "code_changed") if name in began}, "ended_by": code()}


def _read(path: Path) -> dict[str, Any]:
    return parse_object(read_text(path), str(path))


def _train(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    folders: Sequence[Path] | None,
    report: Callable[[int, EpochRecord], None],
    tick: Callable[[], None] | None,
) -> list[Run | DivergedError]:
    """Train what is not finished; what is, and has lost its record only, is read."""
    finished = [index for index, folder in enumerate(folders or ()) if _is_finished(folder)]
    open_ones = [index for index in range(len(configs)) if index not in finished]
    runs: dict[int, Run | DivergedError] = {}
    if folders is not None:
        device = str(find_device(configs[0]))
        runs |= {index: load_run(folders[index], device=device) for index in finished}
    if open_ones:
        trained = train_together(
            [configs[index] for index in open_ones],
            dataset,
            folders=None if folders is None else [folders[index] for index in open_ones],
            report=lambda index, record: report(open_ones[index], record),
            tick=tick,
        )
        runs |= dict(zip(open_ones, trained, strict=True))
    return [runs[index] for index in range(len(configs))]


def _folder(work: str | Path, cell: Cell, config: TrainConfig) -> Path:
    """The folder of a run. Another config has another folder: a recipe that was edited begins anew."""
    digest = hashlib.sha256(config.to_json().encode()).hexdigest()[:8]
    return Path(work) / f"{cell.name}-{digest}"


def _is_finished(folder: Path) -> bool:
    files = RunFolder(folder)
    return files.config.exists() and files.best.exists() and not files.checkpoint.exists()
