"""Classify with a Bayesian quantized network as a scikit-learn estimator, and let it refuse what it is unsure about."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bqn import metrics
from bqn.estimators import BQNClassifier


def main() -> None:
    """Compare with a logistic regression, then trade coverage for error."""
    images, labels = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(images, labels, test_size=0.5, random_state=0, stratify=labels)
    models = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        "Bayesian quantized network": BQNClassifier(random_state=0),
    }
    target = torch.from_numpy(y_test)
    print(f"{len(X)} digits to learn from, {len(X_test)} to be tested on{'NLL':>12s}{'error':>8s}{'ECE':>8s}")
    for name, model in models.items():
        probs = torch.from_numpy(model.fit(X, y).predict_proba(X_test))
        scores = metrics.nll(probs, target), metrics.error(probs, target), metrics.ece(probs, target)
        print(f"{name:48s}{scores[0]:9.3f}{scores[1]:8.2%}{scores[2]:8.2%}")

    # The network knows when it does not know: most of its mistakes are among the digits that it is least sure about.
    aleatoric, epistemic = model.predict_uncertainty(X_test)
    wrong = model.predict(X_test) != y_test
    surest_first = np.argsort(aleatoric + epistemic)
    print("\nanswering only the digits it is surest about:")
    for coverage in (1.0, 0.95, 0.9, 0.8):
        answered = surest_first[: round(coverage * len(X_test))]
        print(f"{coverage:6.0%} answered {wrong[answered].mean():8.2%} wrong")

    unsure = surest_first[-1]
    print("\nthe digit it is least sure about:")
    for row in X_test[unsure].reshape(8, 8):
        print("    " + "".join(" .:-=+*#@"[int(pixel // 2)] * 2 for pixel in row))
    first, second = model.predict_proba(X_test[[unsure]])[0].argsort()[:-3:-1]
    print(f"it says {first} or {second}; it is a {y_test[unsure]}")


if __name__ == "__main__":
    main()
