"""Active learning: ask for the labels that would tell the network most (BALD), against asking at random."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from bqn.estimators import BQNClassifier

SEEDS, START, BATCH, ROUNDS = 3, 50, 10, 7
CANDIDATES = 300


def learn(seed: int, by_doubt: bool) -> list[float]:
    """Accuracy on the test digits before each round of questions, and after the last: `ROUNDS + 1` numbers."""
    images, labels = load_digits(return_X_y=True)
    pool, X_test, answers, y_test = train_test_split(images, labels, test_size=600, random_state=seed, stratify=labels)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pool))
    known, unknown = order[:START], order[START:]
    accuracy = []
    for _ in range(ROUNDS + 1):
        model = BQNClassifier(hidden=(128,), epochs=40, batch_size=200, random_state=seed)
        model.fit(pool[known], answers[known])
        accuracy.append(model.score(X_test, y_test))
        candidates = rng.permutation(unknown)[:CANDIDATES]
        if by_doubt:  # the mutual information between the label and the network, highest first
            candidates = candidates[np.argsort(-model.predict_uncertainty(pool[candidates]).epistemic)]
        known = np.append(known, candidates[:BATCH])
        unknown = np.setdiff1d(unknown, known)
    return accuracy


def main() -> None:
    """Print both learning curves."""
    bald, random = (np.array([learn(seed, by_doubt) for seed in range(SEEDS)]).mean(0) for by_doubt in (True, False))
    print(f"accuracy on 600 test digits, mean of {SEEDS} runs\n\nlabels    BALD   random")
    for step, (ours, theirs) in enumerate(zip(bald, random, strict=True)):
        print(f"{START + step * BATCH:6d}{ours:8.1%}{theirs:9.1%}")
    gain = (bald - random).mean()
    print(f"\nthe better curve on average: {'BALD' if gain > 0 else 'random'}, by {abs(gain):.1%}")


if __name__ == "__main__":
    main()
