"""TrainConfig: what it accepts, what it refuses, and that it survives JSON and TOML."""

import json

import pytest

from bqn import BINARY, TERNARY
from bqn.training import ConfigError, TrainConfig, read_toml
from bqn.training.presets import BY_MODEL


@pytest.mark.parametrize("model", list(BY_MODEL))
def test_json_round_trip(model):
    config = TrainConfig.preset({"model": model, "seed": 7, "lam_schedule": "warm-up"})
    assert TrainConfig.from_json(config.to_json()) == config


def test_resolved_config_says_everything():
    values = json.loads(TrainConfig(model="cnn").to_json())
    assert values["hidden"] == [1024]
    assert values["channels"] == [64, 64]
    assert values["pool_first"] is True
    assert values["batch_norm"] is None


def test_toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('model = "mlp"\nhidden = [32, 16]\nlevels = "ternary"\nlam = 1\nbatch_norm = false\n')
    config = TrainConfig.from_toml(path, {"epochs": 3, "hidden": (5,)})
    assert config.hidden == (5,)
    assert config.levels == TERNARY
    assert config.lam == 1.0
    assert isinstance(config.lam, float)
    assert config.batch_norm is False
    assert config.epochs == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch = 3", "run.toml: 'epoch' is not a setting; the nearest is 'epochs'"),
        ("[train]\nepochs = 3", "'train' is not a setting"),
        ("epochs = ", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_bad_toml(tmp_path, content, message):
    path = tmp_path / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read_toml(path)


@pytest.mark.parametrize("values", [{"model": model} for model in BY_MODEL] + [{"method": "ebp"}, {"lam": 0.3}])
def test_config_of_a_run(tmp_path, values):
    config = TrainConfig.preset({**values, "levels": "ternary"} if "model" in values else values)
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert TrainConfig.from_toml(path) == config
    assert TrainConfig.from_toml(path, {"seed": 9}).seed == 9
    assert None not in read_toml(path).values()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"epoch": 3}', "config.json: 'epoch' is not a setting; the nearest is 'epochs'"),
        (b'{"epochs": 3, "epochs": 4}', "config.json: a key stands twice in one object"),
        (b'{"lam": NaN}', "config.json: NaN is not a JSON number"),
        (b"[]", "config.json must hold a JSON object, got list"),
        (b"epochs = 3", "config.json is not valid JSON"),
        (b"\xff", "config.json is not valid JSON"),
    ],
)
def test_bad_config_of_a_run(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_toml(path)


def test_missing_toml(tmp_path):
    with pytest.raises(ConfigError, match=r"none.toml: No such file"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("learning-rate", "learning_rate"), ("lamda", "lam"), ("Epochs", "epochs"), ("hiden", "hidden")],
)
def test_unknown_key_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"config: '{key}' is not a setting; the nearest is '{nearest}'"):
        TrainConfig.from_json(json.dumps({key: 1}))
    with pytest.raises(ConfigError, match=f"the nearest is '{nearest}'"):
        TrainConfig.preset({key: 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 2.0}, "epochs must be an integer, got 2.0"),
        ({"epochs": True}, "epochs must be an integer, got True"),
        ({"epochs": "3"}, "epochs must be an integer, got '3'"),
        ({"epochs": None}, "epochs must be an integer, got None"),
        ({"lam": "small"}, "lam must be a number, got 'small'"),
        ({"lam": False}, "lam must be a number, got False"),
        ({"flip": 1}, "flip must be true or false, got 1"),
        ({"data": 3}, "data must be a string, got 3"),
        ({"hidden": 3}, "hidden must be a list"),
        ({"hidden": [3, "a"]}, "hidden must be an integer, got 'a'"),
        ({"hidden": [1] * 1000}, "hidden must be a list of at most 256"),
        ({"levels": "sextary"}, "levels must be one of binary, ternary, quaternary or ascending numbers"),
        ({"lr_schedule": "cosin"}, "lr_schedule must be one of cosine, exponential, constant, got 'cosin'"),
        ({"bound": ["tilted"]}, "bound must be one of"),
        ({"seed": 10**400}, "seed must be from 0"),
        ({"lam": 10**400}, "lam must be a number"),
    ],
)
def test_wrong_type(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"threads": 100_000}, "threads must be at most 1024, got 100000"),
        ({"threads": 9999999999999}, "threads must be at most 1024, got 9999999999999"),
        ({"epochs": 10**400}, "epochs must be at most 2147483647, got 1000"),
        ({"split": 2**31}, "split must be at most 2147483647, got 2147483648"),
        ({"shift": 2**64}, "shift must be at most 2147483647"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, got inf"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"lr_decay": 1.5}, "lr_decay must be above 0 and at most 1"),
        ({"lam": float("nan")}, "lam must be finite"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1"),
        ({"hidden": [0]}, "hidden must be numbers from 1 to"),
        ({"hidden": [10**9]}, "hidden must be numbers from 1 to"),
        ({"levels": [1.0, -1.0]}, "levels must be strictly ascending"),
        ({"levels": [1.0]}, "levels must hold at least 2"),
        ({"shift": -1}, "shift must be at least 0"),
        ({"seed": -1}, "seed must be from 0"),
        ({"device": "gpu"}, r"device must be auto, cpu or cuda\[:N\], got 'gpu'"),
        ({"patience": 2, "validation_fraction": 0.0}, "patience needs validation data"),
        ({"model": "transformer"}, "model must be one of mlp, cnn, vgg, resnet, regressor"),
        ({"pool_first": True}, "pool_first is not an option of model mlp, which takes hidden, batch_norm, levels"),
        ({"model": "cnn", "bias_levels": "binary"}, "bias_levels is not an option of model cnn"),
    ],
)
def test_out_of_range(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must hold a JSON object, got list"),
        ("{", "not valid JSON"),
        ('{"epochs": 1, "epochs": 2}', "a key stands twice"),
        ('{"lam": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "not valid JSON"),
        ('{"epochs": 0}', "config: epochs must be at least 1"),
    ],
)
def test_bad_json(text, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_json(text)


def test_preset_suits_model_and_data_and_yields_to_the_user():
    assert TrainConfig.preset().model == "mlp"
    assert TrainConfig.preset(task="regression").model == "regressor"
    assert TrainConfig.preset({"task": "regression"}).model == "regressor"
    assert TrainConfig.preset({"model": "mlp"}, task="regression").model == "mlp"
    assert TrainConfig.preset({"model": "vgg", "data": "cifar10"}).flip is True
    assert TrainConfig.preset({"model": "vgg", "flip": False}).flip is False
    assert TrainConfig.preset({"levels": "binary"}, task="regression").levels == BINARY
    assert TrainConfig.preset({"data": "digits"}).epochs > TrainConfig.preset({"data": "mnist"}).epochs
