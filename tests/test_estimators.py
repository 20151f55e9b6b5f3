"""The scikit-learn faces: scikit-learn's own checks, and what they do not check."""

import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bqn.estimators import BQNClassifier, BQNRegressor, Uncertainty
from bqn.training import ConfigError

# The defaults pass as well. Fewer epochs, because the checks fit some three hundred times.
QUICK = {"epochs": 40}
FAST = {"epochs": 5, "hidden": (16,), "random_state": 0}


@parametrize_with_checks([BQNClassifier(**QUICK), BQNRegressor(**QUICK)])
def test_checks_of_scikit_learn(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it one check refuses to run
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return train_test_split(X, load_iris().target_names[y], random_state=0, stratify=y)


@pytest.fixture(scope="module")
def friedman():
    return train_test_split(*make_friedman1(300, noise=1.0, random_state=0), random_state=0)


# --- quality of the defaults ------------------------------------------------------------------------------------------


def test_classifier_is_as_good_as_logistic_regression_where_that_is_best():
    X, y = load_breast_cancer(return_X_y=True)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    ours, theirs = (
        cross_val_predict(model, X, y, cv=3, method="predict_proba")
        for model in (BQNClassifier(random_state=0), linear)
    )
    assert log_loss(y, ours) < log_loss(y, theirs) + 0.02
    assert np.mean(ours.argmax(1) != y) < np.mean(theirs.argmax(1) != y) + 0.01


def test_classifier_beats_logistic_regression_on_digits():
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.3, random_state=0)
    model = BQNClassifier(random_state=0).fit(X, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000)).fit(X, y)
    assert log_loss(y_test, model.predict_proba(X_test)) < log_loss(y_test, linear.predict_proba(X_test))
    assert model.score(X_test, y_test) > linear.score(X_test, y_test)


def test_regressor_is_as_good_as_ridge_where_that_is_best():
    X, y = load_diabetes(return_X_y=True)
    ours, theirs = (cross_val_predict(model, X, y, cv=3) for model in (BQNRegressor(random_state=0), RidgeCV()))
    assert np.mean((y - ours) ** 2) < 1.03 * np.mean((y - theirs) ** 2)


def test_regressor_beats_ridge_on_a_function_that_is_not_linear(friedman):
    X, X_test, y, y_test = friedman
    model = BQNRegressor(random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > RidgeCV().fit(X, y).score(X_test, y_test) + 0.02


def test_error_bars_cover_what_they_promise(friedman):
    X, X_test, y, y_test = friedman
    mean, std = BQNRegressor(random_state=0).fit(X, y).predict(X_test, return_std=True)
    assert 0.8 < np.mean(np.abs(y_test - mean) < 1.645 * std) < 0.99  # 0.9 if perfect, and 75 examples


# --- predictions ------------------------------------------------------------------------------------------------------


def test_uncertainty_of_a_classifier_adds_up_to_the_entropy(iris):
    X, X_test, y, _ = iris
    model = BQNClassifier(**FAST).fit(X, y)
    probs, parts = model.predict_proba(X_test), model.predict_uncertainty(X_test)
    assert isinstance(parts, Uncertainty)
    assert parts.epistemic.min() > 0
    assert parts.aleatoric.min() > 0
    np.testing.assert_allclose(sum(parts), -(probs * np.log(probs)).sum(1), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X_test), model.classes_[probs.argmax(1)])


def test_predictions_are_those_of_the_network(iris):
    X, X_test, y, _ = iris
    model = BQNClassifier(**FAST).fit(X, y)
    x = torch.tensor(model.scaler_.transform(X_test), dtype=torch.float32)
    np.testing.assert_allclose(model.predict_proba(X_test), model.network_.predict(x), atol=1e-5)


@pytest.mark.parametrize("shape", [(225,), (225, 1), (225, 2)])
def test_regression_keeps_the_shape_and_units_of_the_target(friedman, shape):
    X, X_test, y, _ = friedman
    y = 1000 + 50 * np.stack([y, -2 * y], 1)[:, : shape[1] if len(shape) > 1 else 1].reshape(shape)
    model = BQNRegressor(random_state=0).fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    parts = model.predict_uncertainty(X_test)
    assert mean.shape == std.shape == parts.aleatoric.shape == parts.epistemic.shape == (75, *shape[1:])
    np.testing.assert_allclose(sum(parts), std**2)
    assert (parts.epistemic > 0).all()
    np.testing.assert_array_equal(parts.aleatoric, np.broadcast_to(parts.aleatoric[0], mean.shape))
    np.testing.assert_array_equal(model.predict(X_test), mean)
    assert model.score(X, y) > 0.6


def test_large_offsets_cost_no_accuracy(friedman):
    X, X_test, y, _ = friedman
    plain = BQNRegressor(**FAST).fit(X, y).predict(X_test)
    moved = BQNRegressor(**FAST).fit(X + 2.0**24, y + 2.0**24).predict(X_test + 2.0**24)
    np.testing.assert_allclose(moved - 2.0**24, plain, atol=1e-3)


def test_labels_may_be_strings(iris):
    X, X_test, y, y_test = iris
    model = BQNClassifier(random_state=0).fit(X, y)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert model.score(X_test, y_test) > 0.85


@pytest.mark.parametrize("estimator", [BQNClassifier(), BQNRegressor()])
def test_nothing_is_predicted_before_fit(estimator):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        estimator.predict(np.zeros((2, 3)))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        estimator.predict_uncertainty(np.zeros((2, 3)))


# --- training ---------------------------------------------------------------------------------------------------------


def test_random_state_decides_everything_and_nothing_else_is_touched(iris):
    X, X_test, y, _ = iris
    before = torch.get_rng_state()
    first, again, other = (
        BQNClassifier(**{**FAST, "random_state": seed}).fit(X, y).predict_proba(X_test)
        for seed in (3, np.random.RandomState(3), 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("examples", "batch_size", "epochs"), [(12, 2, 40), (10, 5, 100), (10, 100, 200)])
def test_small_sets_get_more_epochs(examples, batch_size, epochs):
    X = np.random.default_rng(0).normal(size=(examples, 2))
    model = BQNRegressor(hidden=(4,), batch_size=batch_size).fit(X, X[:, 0])
    assert len(model.history_.records) == epochs
    assert model.n_samples_seen_ == examples


def test_validation_examples_choose_the_epoch_and_end_the_training(friedman):
    X, _, y, _ = friedman
    model = BQNRegressor(epochs=300, validation_fraction=0.2, patience=5, learning_rate=0.3, random_state=0).fit(X, y)
    losses = [record.validation_nll for record in model.history_.records]
    assert model.history_.stopped_early
    assert len(losses) == model.history_.best_epoch + 5 < 300
    assert losses[model.history_.best_epoch - 1] == min(losses)


def test_classes_are_found_in_the_validation_examples_too(iris):
    X, _, y, _ = iris
    model = BQNClassifier(**FAST, validation_fraction=0.1).fit(X, y)
    assert all(0 <= record.validation_error <= 1 for record in model.history_.records)


@pytest.mark.parametrize("estimator", [BQNClassifier, BQNRegressor])
@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("hidden", 64),
        ("hidden", None),
        ("hidden", (0,)),
        ("levels", "octal"),
        ("activations", (1.0, -1.0)),
        ("lam", float("nan")),
        ("epochs", 0),
        ("batch_size", 0),
        ("batch_size", None),
        ("learning_rate", -1.0),
        ("validation_fraction", 1.0),
        ("patience", 3),
        ("device", "abacus"),
    ],
)
def test_a_bad_parameter_is_named(estimator, parameter, value):
    X, y = np.arange(8.0).reshape(4, 2), [0, 1, 0, 1]
    with pytest.raises(ValueError, match=f"^{parameter} "):
        estimator(**{parameter: value}).fit(X, y)


def test_one_class_is_not_enough():
    with pytest.raises(ValueError, match="y must hold at least two classes, got one class"):
        BQNClassifier().fit([[0.0], [1.0]], ["a", "a"])
    with pytest.raises(ValueError, match="classes must hold at least two classes, got one class"):
        BQNClassifier().partial_fit([[0.0], [1.0]], ["a", "a"], classes=["a"])


# --- partial_fit ------------------------------------------------------------------------------------------------------


def _chunks(X, y, size):
    return [(X[start : start + size], y[start : start + size]) for start in range(0, len(X), size)]


def test_classifier_learns_from_a_stream():
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.3, random_state=0)
    model = BQNClassifier(random_state=0)
    for part in _chunks(X, y, 25):
        model.partial_fit(*part, classes=range(10))
    assert model.n_samples_seen_ == len(X)
    assert len(model.history_.records) == 51
    assert model.score(X_test, y_test) > 0.88


def test_regressor_learns_from_a_stream():
    X, y = make_friedman1(1200, noise=1.0, random_state=0)
    model = BQNRegressor(random_state=0)
    for part in _chunks(X[:1000], y[:1000], 20):
        model.partial_fit(*part)
    assert model.score(X[1000:], y[1000:]) > 0.6
    np.testing.assert_allclose(model.scaler_.mean_, X[:1000].mean(0))
    np.testing.assert_allclose(model.target_scaler_.var_, y[:1000].var())


def test_partial_fit_continues_after_fit_and_fit_starts_anew(iris):
    X, X_test, y, _ = iris
    model = BQNClassifier(**FAST).fit(X, y)
    first = model.predict_proba(X_test)
    model.partial_fit(X, y)
    assert len(model.history_.records) == 6
    assert model.history_.records[-1].elbo > model.history_.records[0].elbo
    assert np.abs(model.predict_proba(X_test) - first).max() > 1e-3
    np.testing.assert_array_equal(model.fit(X, y).predict_proba(X_test), first)


def test_parameters_may_change_between_calls(iris):
    X, _, y, _ = iris
    model = BQNClassifier(**FAST).partial_fit(X, y, classes=np.unique(y))
    weights = _weights(model)
    model.set_params(learning_rate=1e-12).partial_fit(X, y)
    assert all(torch.allclose(tensor, weights[name]) for name, tensor in _weights(model).items())
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        model.set_params(batch_size=0).partial_fit(X, y)
    model.set_params(learning_rate=0.1, lam=0.2, batch_size=50).partial_fit(X, y)
    assert not any(torch.allclose(tensor, weights[name]) for name, tensor in _weights(model).items())
    assert [record.learning_rate for record in model.history_.records] == [0.05, 1e-12, 0.1]
    assert [record.lam for record in model.history_.records] == [0.05, 0.05, 0.2]


def _weights(model):
    return {name: tensor.detach().clone() for name, tensor in model.network_.named_parameters()}


def test_partial_fit_says_what_does_not_fit():
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    model = BQNClassifier(**FAST)
    with pytest.raises(ValueError, match="classes must be given on the first call"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y must hold only the classes \[0 5\], got \[1\] too"):
        model.partial_fit(X, y, classes=[0, 5])
    model.partial_fit(X, y, classes=[1, 0])
    with pytest.raises(ValueError, match=r"classes must be those of the first call, \[0 1\], got \[0 1 2\]"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"y must have shape \('N',\) as before, got \(4, 2\)"):
        BQNRegressor(**FAST).partial_fit(X, X[:, 0]).partial_fit(X, X)


def test_a_diverging_pass_says_so_and_keeps_the_weights(friedman):
    X, _, y, _ = friedman
    model = BQNRegressor(**FAST).partial_fit(X, y)
    with torch.no_grad():
        model.network_.head.log_noise.fill_(-200.0)  # noise that underflows to zero
    weights = _weights(model)
    with pytest.raises(RuntimeError, match="the ELBO is -inf; a lower learning_rate may help"):
        model.partial_fit(X, y)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in _weights(model).items())


# --- living among scikit-learn's tools --------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [BQNClassifier, BQNRegressor])
def test_a_pickled_estimator_predicts_and_learns_on_as_if_nothing_had_happened(tmp_path: Path, estimator):
    X, y = load_iris(return_X_y=True)
    options = {"classes": range(3)} if estimator is BQNClassifier else {}
    model = estimator(**FAST).partial_fit(X, y, **options)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        learned = clone(model).partial_fit(X, y, **options).partial_fit(X, y)
        copy.partial_fit(X, y)
        np.testing.assert_array_equal(copy.predict_uncertainty(X), learned.predict_uncertainty(X))


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_grid_search_over_a_pipeline_is_the_same_with_one_and_two_jobs(iris, backend):
    X, X_test, y, y_test = iris
    pipeline = make_pipeline(StandardScaler(), BQNClassifier(**FAST))
    grid = [{"bqnclassifier__epochs": np.array([3, 30])}, {"bqnclassifier__levels": ["ternary"]}]
    alone = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss", n_jobs=1).fit(X, y)
    with joblib.parallel_config(backend, n_jobs=2):
        search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-4)
    assert search.best_params_ == {"bqnclassifier__epochs": 30}
    assert search.score(X_test, y_test) > -0.7  # nats; a guess costs 1.1


def test_scikit_learn_is_needed_for_estimators_only():
    script = """
import sys
sys.modules["sklearn"] = None
import bqn
try:
    import bqn.estimators
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'bqn.estimators needs scikit-learn: pip install "bqn[sklearn]"'
