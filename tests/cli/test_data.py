"""`bqn data`: what there is, bringing it, checking it."""

import json

from bqn.data import FileReport
from tests.data.files import write_uci_set


def test_list(bqn, tmp_path):
    listed = bqn("data", "list", "--data-dir", tmp_path)
    assert listed.code == 0
    for words in (("digits", "bundled"), ("mnist", "no"), ("boston", "no")):
        assert any(line.split()[:1] + line.split()[-1:] == list(words) for line in listed.out.splitlines())
    assert max(map(len, listed.out.splitlines())) <= 80


def test_list_as_json(bqn, tmp_path):
    write_uci_set(tmp_path / "uci/kin8nm")
    listed = json.loads(bqn("data", "list", "--data-dir", tmp_path, "--json").out)
    here = {each["name"]: each["here"] for each in listed["sets"]}
    assert (here["kin8nm"], here["mnist"], here["iris"]) == ("in part", "no", "bundled")


def test_list_one(bqn):
    shown = bqn("data", "list", "boston")
    assert "encodes race" in " ".join(shown.out.split())
    assert "mnist" not in shown.out
    assert "did you mean mnist?" in bqn("data", "list", "mnst").fails()


def test_verify(bqn, tmp_path):
    assert bqn("data", "verify", "--data-dir", tmp_path) == (0, f"no data set in {tmp_path}\n", "")
    assert bqn("data", "verify", "digits") == (0, "digits: ok, it comes with scikit-learn\n", "")
    folder = tmp_path / "uci/kin8nm"
    write_uci_set(folder)  # not what was published
    for names in ((), ("kin8nm",)):
        found = bqn("data", "verify", *names, "--data-dir", tmp_path)
        assert found.code == 1
        assert found.out.startswith("kin8nm: 0 of 43 files ok\n")
        assert "damaged:" in found.out
        assert "missing:" in found.out
    report = json.loads(bqn("data", "verify", "kin8nm", "--data-dir", tmp_path, "--json").out)
    assert report["ok"] is False
    states = {file["path"]: file["state"] for file in report["sets"]["kin8nm"]}
    assert states[str(folder / "data.txt")] == "damaged"
    assert states[str(folder / "index_train_19.txt")] == "missing"


def test_fetch(bqn, tmp_path, monkeypatch):
    asked = []

    def fetch(name, root, progress):
        asked.append((name, root))
        return [FileReport(tmp_path / "file", "ok")]

    monkeypatch.setattr("bqn.cli.data.fetch_set", fetch)
    fetched = bqn("data", "fetch", "mnist", "kmnist", "--data-dir", tmp_path)
    assert fetched == (0, f"mnist: ok, 1 file in {tmp_path}\nkmnist: ok, 1 file in {tmp_path}\n", "")
    assert asked == [("mnist", tmp_path), ("kmnist", tmp_path)]


def test_fetch_asks_for_nothing_if_a_name_is_wrong(bqn, monkeypatch):
    monkeypatch.setattr("bqn.cli.data.fetch_set", None)
    assert "no data set is called 'minst'" in bqn("data", "fetch", "mnist", "minst").fails()


def test_fetch_that_fails_names_files_and_places(bqn, tmp_path, monkeypatch):
    monkeypatch.setattr("bqn.data._fetch.download", _no_network)
    told = bqn("data", "fetch", "boston", "--data-dir", tmp_path).fails()
    assert "boston.csv" in told
    assert str(tmp_path / "boston") in told
    assert "download failed: no network" in told


def _no_network(*arguments):
    raise OSError("no network")
