"""Table 4 as Markdown: Boston by the paper and by us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bqn.comparison import MethodRecord, RecordFolder, standard_error
from bqn.comparison.statistics import mean
from bqn.reproduction import paper, tables
from bqn.reproduction.aims import BOSTON_LOG_LIKELIHOOD, BOSTON_RMSE
from bqn.reproduction.boston import SPLITS

# Rows: name, folder under results/regression, record, method of the paper's table 4.
_ROWS = (
    ("BQN, recipe `best`", "boston", "bqn", "bqn"),
    ("BQN, recipe `paper`", "boston-paper", "bqn", "bqn"),
    ("PBP", "boston", "pbp", "pbp"),
    ("EBP", "boston", "ebp", "ebp"),
    ("NPN", "boston", "npn", "npn"),
    ("MC dropout", "boston", "mc-dropout", ""),
)


def boston(out: Path) -> str:
    """The table and what is to be said about it."""
    found = {(folder, name): RecordFolder(out / "regression" / folder).read(name) for _, folder, name, _ in _ROWS}
    heads = ("", "paper: RMSE", "ours: RMSE", "log-likelihood", "lowest and highest RMSE of a split", "splits")
    said = paper.boston()
    rows = []
    for title, folder, name, method in _ROWS:
        record, printed = found[folder, name], said.get(method)
        spread = "" if printed is None or printed.std is None else f" ± {printed.std:.2f}"
        theirs = tables.NOTHING if printed is None else f"{printed.mean:.2f}{spread}"
        held = name == "bqn" and folder == "boston"
        rows.append([title, theirs, *_ours(record, held)])
    return "\n".join(
        [
            tables.markdown(heads, rows),
            "",
            _protocol(found["boston", "bqn"], found["boston-paper", "bqn"]),
            _rank(found),
        ]
    ).rstrip()


def _ours(record: MethodRecord | None, held: bool) -> list[str]:
    if record is None:
        return [tables.MISSING] * 4
    rmse, likelihood = (_values(record, name) for name in ("rmse", "log_likelihood"))
    worse = (held and mean(rmse) > BOSTON_RMSE, held and mean(likelihood) < BOSTON_LOG_LIKELIHOOD)
    cells = [
        _with_error(values) + f" {tables.SHORT}" * bad for values, bad in zip((rmse, likelihood), worse, strict=True)
    ]
    return [*cells, f"{min(rmse):.2f} – {max(rmse):.2f}", str(len(record.replicates))]


def _with_error(values: list[float]) -> str:
    error = standard_error(values)
    return f"{mean(values):.2f}" + ("" if error is None else f" ± {error:.2f}")


def _protocol(best: MethodRecord | None, faithful: MethodRecord | None) -> str:
    """Why the paper's protocol and this one give different numbers, as far as the records tell."""
    lines = [
        "The paper gives a mean over ten seeds with 456 examples to train and 50 to test on: one split, as it seems,",
        "and its ± would be the spread of seeds. What a split gives depends on which houses are tested on.",
    ]
    said = paper.boston()["bqn"].mean
    for recipe, record in (("best", best), ("paper", faithful)):
        if record is not None:
            rmse = _values(record, "rmse")
            reached = sum(value <= said for value in rmse)
            lines.append(
                f"Recipe `{recipe}` has an RMSE between {min(rmse):.2f} and {max(rmse):.2f}, by split; {reached} of "
                f"{len(rmse)} splits are at or below the paper's {said:.2f}."
            )
            if recipe == "paper" and not reached:
                lines.append(_conclusion(len(rmse)))
    return "\n".join(lines) + "\n"


def _conclusion(splits: int) -> str:
    """What no split at or below the paper's figure means: with some splits missing, nothing yet."""
    if splits < SPLITS:
        return f"Only {splits} of the {SPLITS} splits were run with it: too few to say what the choice of a split does."
    return "So the choice of a split alone does not explain the paper's figure."


def _values(record: MethodRecord, name: str) -> list[float]:
    """A figure of the usual mode, split by split."""
    return [value for value in next(iter(record.modes.values()))[name] if value is not None]


def _rank(found: Mapping[tuple[str, str], MethodRecord | None]) -> str:
    """Whether BQN is ahead of the methods of table 4."""
    records = {name: found["boston", name] for name in ("bqn", "pbp", "ebp", "npn")}
    if any(record is None for record in records.values()):
        return ""
    means = {
        name: {key: mean(_values(record, key)) for key in ("rmse", "log_likelihood")}
        for name, record in records.items()
        if record is not None
    }
    ours = means.pop("bqn")
    ahead = [n for n, m in means.items() if ours["rmse"] < m["rmse"] and ours["log_likelihood"] > m["log_likelihood"]]
    behind = [name for name in means if name not in ahead]
    words = f"Recipe `best` is ahead of our {', '.join(name.upper() for name in ahead)} in both means" if ahead else ""
    rest = f"not ahead of {', '.join(name.upper() for name in behind)} in both" if behind else ""
    return f"{'; '.join(part for part in (words, rest) if part)}.\n"
