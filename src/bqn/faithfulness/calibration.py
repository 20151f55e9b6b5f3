"""Is the confidence right, and does it fall on what the network has never seen? In every mode, in one small object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bqn.data import Split
from bqn.evaluation import evaluate
from bqn.network import Network

SCORES = ("nll", "error", "ece")


def calibration(net: Network, test: Split, outside: Mapping[str, Split], **options: Any) -> dict[str, Any]:
    """Calibration before and after a temperature, and the detection of examples from elsewhere, by mode.

    Parameters
    ----------
    net : Network
    test : Split
    outside : examples of other sets, by name
    **options
        As for `bqn.evaluation.evaluate`; `temper_on` is what the temperature is fitted on.

    Returns
    -------
    dict
        For each mode "nll", "error" and "ece"; "tempered", the same with a temperature, and the "temperature", if
        there was something to fit it on; and "auroc", for each set of `outside`, by "entropy" and by "epistemic"
        uncertainty (None for a single network, which has none).
    """
    whole = evaluate(net, test, **options)
    modes = [mode for mode in whole if mode in whole["curves"]]
    result: dict[str, Any] = {mode: {name: whole[mode][name] for name in SCORES} | {"auroc": {}} for mode in modes}
    for mode, scores in whole.get("tempered", {}).items():
        result[mode]["tempered"] = {name: scores[name] for name in ("temperature", *SCORES)}
    plain = {key: value for key, value in options.items() if key != "temper_on"}
    for name, split in outside.items():
        detection = evaluate(net, test, ood=split, **plain)["ood"]
        for mode in modes:
            given = {kind: found and found["auroc"] for kind, found in detection[mode].items()}
            result[mode]["auroc"][name] = given
    return result
