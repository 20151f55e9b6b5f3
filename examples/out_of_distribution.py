"""Detect inputs of a kind that was never trained on by the uncertainty of the prediction."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from bqn.estimators import BQNClassifier
from bqn.metrics import auroc


def main() -> None:
    """Train on the digits 0 to 7; then tell strangers from new digits 0 to 7."""
    images, labels = load_digits(return_X_y=True)
    known = labels < 8
    X, X_test, y, y_test = train_test_split(images[known], labels[known], test_size=0.3, random_state=0)
    model = BQNClassifier(random_state=0).fit(X, y)
    rival = LogisticRegression(max_iter=5000).fit(X, y)
    print(f"trained on {len(X)} digits 0 to 7; error on {len(X_test)} new ones: {1 - model.score(X_test, y_test):.2%}")

    rng = np.random.default_rng(0)
    strangers = {
        "the digits 8 and 9": images[~known],
        "shuffled pixels": rng.permuted(X_test, axis=1),
        "turned by a quarter": np.rot90(X_test.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64),
        "half of the image lost": X_test * np.repeat([1, 0], 32),
    }
    print(f"\n{'AUROC against known digits':28s}{'entropy':>10s}{'epistemic':>12s}{'entropy of LR':>16s}")
    for name, others in strangers.items():
        ours, theirs = (_scores(model, rival, x) for x in (X_test, others))
        found = [_auroc(stranger, familiar) for stranger, familiar in zip(theirs, ours, strict=True)]
        print(f"{name:28s}{found[0]:10.3f}{found[1]:12.3f}{found[2]:16.3f}")


def _scores(model: BQNClassifier, rival: LogisticRegression, x: np.ndarray) -> list[np.ndarray]:
    """Entropy and epistemic part of it, and the entropy of the logistic regression, for each example."""
    aleatoric, epistemic = model.predict_uncertainty(x)
    probs = rival.predict_proba(x)
    return [aleatoric + epistemic, epistemic, -(probs * np.log(probs + 1e-300)).sum(1)]


def _auroc(strangers: np.ndarray, familiar: np.ndarray) -> float:
    """Probability that a stranger scores higher than a familiar example."""
    scores = torch.from_numpy(np.concatenate([strangers, familiar]))
    return auroc(scores, torch.arange(len(scores)) < len(strangers))


if __name__ == "__main__":
    main()
