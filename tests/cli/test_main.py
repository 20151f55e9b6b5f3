"""Exit codes, the one line about errors, and where output goes."""

import json
import os
import subprocess
import sys

import pytest

from bqn import __version__
from bqn.cli import data, main
from bqn.cli._errors import describe, one_line


def test_help_without_arguments(bqn):
    assert bqn() == bqn("--help")
    assert bqn().code == 0
    assert bqn("-h").out == bqn().out
    for name in ("train", "resume", "evaluate", "report", "compare", "predict", "data"):
        assert f" {name} " in bqn().out


@pytest.mark.parametrize("columns", ["80", "60", "200"])
@pytest.mark.parametrize(
    "command",
    [
        "train",
        "resume",
        "evaluate",
        "report",
        "compare",
        "predict",
        "faithfulness",
        "pack",
        "run",
        "inspect",
        "zoo",
        "export",
        "data list",
        "data fetch",
        "data verify",
    ],
)
def test_every_command_has_help_that_fits(bqn, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", columns)
    shown = bqn(*command.split(), "--help")
    assert shown.code == 0
    assert f"Usage: bqn {command}" in shown.out
    assert max(map(len, shown.out.splitlines())) <= int(columns)
    assert "\x1b" not in shown.out  # no colours in a pipe


def test_version(bqn):
    assert bqn("--version") == (0, f"bqn {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no such command 'trian'"),
        (["train", "--epoch", "3"], "no such option"),
        (["train", "--epochs", "many"], "invalid value for '--epochs'"),
        (["evaluate"], "missing argument 'RUN'"),
        (["predict", "run"], "missing argument 'FILE'"),
        (["data"], "missing command"),
        (["evaluate", "run", "--samples", "0"], "invalid value for '--samples'"),
    ],
)
def test_wrong_usage(bqn, arguments, message):
    told = bqn(*arguments).fails(code=2)
    assert message in told
    assert told.endswith(" --help")


def test_the_right_help_is_named(bqn):
    assert bqn("train", "--epoch", "3").fails(code=2).endswith("; see bqn train --help")


def test_without_typer_one_line_says_what_to_install(bqn, monkeypatch):
    monkeypatch.setattr("bqn.cli.find_spec", lambda name: None if name == "typer" else name)
    assert bqn("--help").fails() == 'the command line needs typer: pip install "bqn[cli]"'


def test_debug_shows_where_an_error_comes_from(bqn):
    plain = bqn("evaluate", "nowhere")
    shown = bqn("evaluate", "nowhere", "--debug")
    assert plain.code == shown.code == 1
    assert "Traceback" in shown.err
    assert shown.err.endswith(plain.err)


def test_bugs_are_not_hidden(bqn, monkeypatch):
    def broken(*arguments):
        raise KeyError("a bug")

    monkeypatch.setattr(data, "available", broken)
    with pytest.raises(KeyError, match="a bug"):
        bqn("data", "list")


def test_imports_that_fail_are_bugs_unless_an_extra_is_missing(bqn, monkeypatch):
    def broken(*arguments):
        raise ImportError(words)

    monkeypatch.setattr(data, "available", broken)
    words = 'plots need matplotlib: pip install "bqn[report]"'
    assert bqn("data", "list").fails() == words
    words = "cannot import name x"
    with pytest.raises(ImportError, match=words):
        bqn("data", "list")


def test_out_of_memory(bqn, monkeypatch):
    def greedy(*arguments):
        raise MemoryError

    monkeypatch.setattr(data, "available", greedy)
    assert "out of memory" in bqn("data", "list").fails()


def test_interrupt(bqn, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "available", interrupted)
    assert bqn("data", "list") == (130, "", "bqn: interrupted\n")


def test_messages_are_one_harmless_line():
    assert one_line("two\nlines \x1b[31mred é") == "two lines \\x1b[31mred é"
    assert describe(OSError(28, os.strerror(28), "file")) == "file: No space left on device"
    assert describe(ValueError()) == "ValueError"


@pytest.mark.parametrize("arguments", [["data", "list"], ["data", "list", "--json"]])
def test_a_full_disk_behind_standard_output(monkeypatch, capsys, arguments):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == 1
        full.flush()  # nothing is left that could fail again
    assert capsys.readouterr().err == "bqn: error: cannot write to standard output: No space left on device\n"


def test_a_reader_that_has_seen_enough(monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["data", "list", "--json"]) == 1
    assert capsys.readouterr().err == ""


def test_module(tmp_path):
    """`python -m bqn` in a process of its own, as a user calls it."""
    environment = {**os.environ, "BQN_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "bqn", "data", "list", "--json"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["data_dir"] == str(tmp_path)
