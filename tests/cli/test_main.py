"""Exit codes, the one line about errors, and where output goes."""

import json
import os
import subprocess
import sys

import pytest
import torch

from bqn import __version__
from bqn.cli import _app, data, main
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
        (["train", "--epochs", "many"], "invalid value for '--epochs': expected a whole number, got 'many'"),
        (["train", "--lam=much"], "invalid value for '--lam': expected a number, got 'much'"),
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


def test_out_of_memory_of_torch_on_a_cpu(bqn, monkeypatch):
    def greedy(*arguments):
        torch.empty(2**60)

    monkeypatch.setattr(data, "available", greedy)
    assert bqn("data", "list").fails().startswith("out of memory; ")


def test_interrupt(bqn, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "available", interrupted)
    assert bqn("data", "list") == (130, "", "bqn: interrupted\n")


def test_interrupt_during_start_up(bqn, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("bqn.cli._main.run", interrupted)
    assert bqn("zoo") == (130, "", "bqn: interrupted\n")


def test_the_help_says_what_the_commands_say():
    for commands in _app.COMMANDS.values():
        for name, text in commands.items():
            assert _app.build(name).help.partition("\n\n")[0] == text


def test_help_shows_no_types_of_switches_and_one_example_a_line(bqn):
    assert "bool" not in bqn("--help").out
    shown = bqn("pack", "--help").out
    assert "bool" not in shown
    assert " $ bqn pack runs/one --out one.bqn\n $ bqn pack runs/one --mode mc" in shown


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["zoo"], ["inspect", "digits-mlp"], ["trian"]])
def test_what_needs_no_torch_does_not_import_it(arguments):
    program = f"import sys; from bqn.cli import main; main({arguments!r}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_nearest_name_is_told(bqn):
    for line, meant in (
        (("train", "--model", "mpl"), "mlp"),
        (("train", "--method", "bqm"), "bqn"),
        (("reproduce", "table1", "--data", "mnst"), "mnist"),
        (("reproduce", "table1", "--recipe", "bst"), "best"),
        (("reproduce", "tabel1"), "table1"),
        (("benchmark", "--data", "digits", "--methods", "qn"), "qnn"),
    ):
        assert bqn(*line).fails(2).endswith(f", did you mean {meant}?")


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


@pytest.mark.parametrize("arguments", [["data", "list"], ["data", "list", "--json"]])
def test_no_standard_output_at_all(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it after `>&-`
    assert main(arguments) == 1
    assert capsys.readouterr().err == "bqn: error: cannot write to standard output: Bad file descriptor\n"


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
