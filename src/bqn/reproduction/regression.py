"""Table 4 as Markdown: Boston by the paper and by us, on many splits and on one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bqn.comparison import MethodRecord, paired_t_test, standard_error
from bqn.comparison.statistics import mean
from bqn.reproduction import paper, tables
from bqn.reproduction.aims import BOSTON_LOG_LIKELIHOOD, BOSTON_RMSE
from bqn.reproduction.boston import SPLITS, boston_folder
from bqn.reproduction.records import Statistic, statistic

# Rows: name, recipe, record, method of the paper's table 4.
_ROWS = (
    ("BQN, recipe `best`", "best", "bqn", "bqn"),
    ("BQN, recipe `paper`", "paper", "bqn", "bqn"),
    ("PBP", "best", "pbp", "pbp"),
    ("EBP", "best", "ebp", "ebp"),
    ("NPN", "best", "npn", "npn"),
    ("MC dropout", "best", "mc-dropout", ""),
)
_RIVALS = ("pbp", "ebp", "npn")

Found = Mapping[tuple[str, str], MethodRecord | None]


def boston(out: Path) -> str:
    """On the published splits: the table and what is to be said about it."""
    found = _read(out)
    held = {("best", "bqn"): {"rmse": BOSTON_RMSE, "log_likelihood": BOSTON_LOG_LIKELIHOOD}}
    return "\n\n".join(filter(None, (_table(found, "split", _with_error, held), _rank(found))))


def boston_one_split(out: Path) -> str:
    """By the paper's protocol, ten seeds of one split: the table, and why the two differ."""
    found = _read(out, one_split=True)
    parts = (_table(found, "seed", _with_deviation), _why(_read(out), found), _ahead_on_it(found))
    return "\n\n".join(filter(None, parts))


def _table(
    found: Found,
    unit: str,
    shown: Callable[[list[float]], str],
    aims: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
) -> str:
    """A row a method; what falls short of its aim is marked."""
    heads = ("", "paper: RMSE", "ours: RMSE", "log-likelihood", f"lowest and highest RMSE of a {unit}", f"{unit}s")
    rows = []
    for title, recipe, name, method in _ROWS:
        record, aim = found[recipe, name], (aims or {}).get((recipe, name))
        cells = [tables.MISSING] * 4
        if record is not None:
            rmse, likelihood = (_values(record, figure) for figure in ("rmse", "log_likelihood"))
            worse = (False, False)
            if aim is not None:
                worse = (mean(rmse) > aim["rmse"], mean(likelihood) < aim["log_likelihood"])
            marks = [f" {tables.SHORT}" * bad for bad in worse]
            cells = [f"{shown(rmse)}{marks[0]}", f"{shown(likelihood)}{marks[1]}", *_extremes(rmse)]
        rows.append([title, _printed(method), *cells])
    return tables.markdown(heads, rows)


def _read(out: Path, one_split: bool = False) -> dict[tuple[str, str], MethodRecord | None]:
    return {(recipe, name): boston_folder(out, recipe, one_split).read(name) for _, recipe, name, _ in _ROWS}


def _printed(method: str) -> str:
    """The paper's RMSE and its standard deviation over seeds."""
    said = paper.boston().get(method)
    spread = "" if said is None or said.std is None else f" ± {said.std:.2f}"
    return tables.NOTHING if said is None else f"{said.mean:.2f}{spread}"


def _with_error(values: list[float]) -> str:
    error = standard_error(values)
    return f"{mean(values):.2f}" + ("" if error is None else f" ± {error:.2f}")


def _with_deviation(values: list[float]) -> str:
    found = _statistic(values)
    return f"{found.mean:.2f}" + ("" if found.std is None else f" ± {found.std:.2f}")


def _extremes(rmse: list[float]) -> tuple[str, str]:
    return f"{min(rmse):.2f} – {max(rmse):.2f}", str(len(rmse))


def _statistic(values: Sequence[float]) -> Statistic:
    found = statistic(values)
    assert found is not None  # a record has one replicate at least
    return found


def _values(record: MethodRecord, name: str) -> list[float]:
    """A figure of the usual mode, replicate by replicate."""
    return [value for value in next(iter(record.modes.values()))[name] if value is not None]


def _why(splits: Found, seeds: Found) -> str:
    """How much of an RMSE is the split and how much the seed, as far as the records tell."""
    said = paper.boston()["bqn"].mean
    lines = []
    for recipe in ("best", "paper"):
        by_split, by_seed = splits[recipe, "bqn"], seeds[recipe, "bqn"]
        if by_split is None or by_seed is None or min(len(by_split.replicates), len(by_seed.replicates)) < 2:
            continue
        of_splits, of_seeds = (_values(record, "rmse") for record in (by_split, by_seed))
        apart, alike = (_statistic(values).std or 0.0 for values in (of_splits, of_seeds))
        reached = sum(value <= said for value in of_splits)
        lines.append(
            f"Recipe `{recipe}`: from split to split the RMSE has a standard deviation of {apart:.2f}, from seed to "
            f"seed of one split {alike:.2f}; {reached} of {len(of_splits)} splits are at or below the paper's "
            f"{said:.2f}."
        )
        if recipe == "paper" and not reached and len(of_splits) == SPLITS:
            nearest = (min(of_splits) - said) / alike if alike else float("inf")
            lines.append(
                f"Its lowest split is {min(of_splits):.2f}, {nearest:.1f} of those deviations of a seed above the "
                "paper's figure: neither a lucky split among these nor a lucky seed explains it."
            )
    return "\n".join(lines)


def _ahead_on_it(found: Found) -> str:
    """Which methods beat BQN on the one split: another order than that of many splits is another reason for these."""
    ours = found["best", "bqn"]
    if ours is None:
        return ""
    limit = mean(_values(ours, "rmse"))
    better = [
        title
        for title, recipe, name, _ in _ROWS
        if (record := found[recipe, name]) is not None and mean(_values(record, "rmse")) < limit
    ]
    return f"On this one split these have a lower RMSE than recipe `best`: {', '.join(better)}." if better else ""


def _rank(found: Found) -> str:
    """Whether BQN is ahead of the methods of table 4, and whether a paired test tells it from luck."""
    ours = found["best", "bqn"]
    records = {name: record for name in _RIVALS if (record := found["best", name]) is not None}
    if ours is None or len(records) < len(_RIVALS):
        return ""
    overlap = ours.examples["test"] / ours.examples["train"]
    ahead: list[str] = []
    behind: list[str] = []
    for name, record in records.items():
        p, better = [], []
        for figure, sign in (("rmse", -1), ("log_likelihood", 1)):
            own, other = _values(ours, figure), _values(record, figure)
            better.append(sign * mean(own) > sign * mean(other))
            test = paired_t_test(own, other, overlap) if len(own) == len(other) else None
            p.append("–" if test is None else f"{test:.2f}")
        (ahead if all(better) else behind).append(f"{name.upper()} (p = {' and '.join(p)})")
    words = f"Recipe `best` is ahead of our {', '.join(ahead)} in both means" if ahead else ""
    rest = f"not ahead of {', '.join(behind)} in both" if behind else ""
    return (
        f"{'; '.join(part for part in (words, rest) if part)}. In parentheses p of RMSE and log-likelihood, by a "
        "paired test that allows for splits that overlap."
    )
