"""From the folder of a run to its report on disk."""

from __future__ import annotations

import os
from pathlib import Path

from bqn.data import DataError, Dataset, load
from bqn.evaluation import Told, evaluate
from bqn.nn import BatchNorm1d, BatchNorm2d
from bqn.report.collection import collect
from bqn.report.rendering import render
from bqn.training import Run, load_data, load_run, own_parts
from bqn.training.files import write_atomic

NAME = "report.html"


def write(
    run_path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ood: str | os.PathLike[str] | None = None,
    corruptions: bool = False,
    samples: int = 5,
    seed: int = 0,
    device: str = "cpu",
    tell: Told | None = None,
) -> Path:
    """Evaluate a run on its test examples and write a page about it.

    Parameters
    ----------
    run_path : folder of the run
    out : path or None
        The file to write, or replace; `report.html` in the folder of the run by default.
    data_dir : path or None
        Folder of the named data sets, as `root` of `bqn.data.load`.
    ood : str, path or None
        A second set, of examples of the same shape that belong to none of the classes.
    corruptions : bool
        Whether to evaluate on noisy, blurred and rotated images too.
    samples, seed : int
        Networks drawn for the MC modes; the report is the same for the same seed.
    device : str
        Where to evaluate.
    tell : function or None
        As for `bqn.evaluation.evaluate`.

    Returns
    -------
    Path of the page
    """
    folder = Path(run_path)
    target = folder / NAME if out is None else Path(out)
    run = load_run(folder, device=device)
    _require_writable(target)
    if run.preprocessing.task == "regression" and (ood is not None or corruptions):
        raise ValueError(f"ood and corruptions are for classification, but {folder} holds a regression")
    dataset = load_data(run.config, _path(data_dir))
    _require_fitting(run, dataset)
    training, _ = own_parts(folder, run.config, dataset)
    outside = None if ood is None else load(ood, _path(data_dir))
    recalibrates = any(isinstance(module, BatchNorm1d | BatchNorm2d) for module in run.net.modules())
    result, details = evaluate(
        run.net,
        dataset.test,
        samples=samples,
        seed=seed,
        recalibrate_on=training if recalibrates else None,
        ood=None if outside is None else outside.test,
        corruptions=corruptions,
        prepare=run.preprocessing.input,
        target_scale=run.preprocessing.target_scale,
        tell=tell,
        details=True,
    )
    page = collect(run, dataset, result, details, title=folder.resolve().name, ood=outside)
    write_atomic(target, render(page).encode())
    return target


def _path(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


def _require_writable(target: Path) -> None:
    """Raise before the work begins where the page could not be written after it."""
    if target.is_dir():
        raise ValueError(f"out must be a file, got the folder {target}")
    if not target.parent.is_dir():
        raise ValueError(f"out must be in a folder that exists, got {target}")


def _require_fitting(run: Run, dataset: Dataset) -> None:
    """Raise unless the data are of the form that the run was trained on."""
    known = run.preprocessing
    if dataset.task != known.task or dataset.input_shape != known.input_shape:
        raise DataError(
            f"{dataset.name} has changed since the run: {dataset.task} on {dataset.input_shape}, "
            f"trained was {known.task} on {known.input_shape}"
        )
    outputs = len(dataset.classes) if dataset.task == "classification" else dataset.test.y.shape[1]
    if outputs != known.outputs or (known.classes and dataset.classes != known.classes):
        raise DataError(
            f"{dataset.name} has changed since the run: it has {outputs} outputs {_names(dataset.classes)}, "
            f"trained were {known.outputs} {_names(known.classes)}"
        )


def _names(classes: tuple[str, ...]) -> str:
    shown = ", ".join(classes[:5])
    return f"({shown}{', …' if len(classes) > 5 else ''})" if classes else ""
