"""`bqn export`: from a packed file to C, ONNX and HTML."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from bqn.atomic import write_atomic
from bqn.cli import main
from bqn.deploy import load_packed, pack, to_onnx
from bqn.models import mlp
from tests.cli.files import images


@pytest.fixture(scope="module")
def packed(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    options = ["--mode", "mc", "--samples", "3", "--seed", "5"]
    assert main(["pack", str(home.classifier), *options, "--out", str(folder / "three.bqn")]) == 0
    assert main(["pack", str(home.regression), *options, "--out", str(folder / "prices.bqn")]) == 0
    return folder


def test_c(bqn, packed, tmp_path):
    done = bqn("export", packed / "three.bqn", "--to", "c", "--out", tmp_path / "my net.h")
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "my net.h").read_text()
    assert "kB, 3 networks as a C99 header" in " ".join(done.out.split())
    main_c = """
    #include <stdio.h>
    #define MY_NET_IMPLEMENTATION
    #include "my net.h"
    int main(void) {
        static uint8_t x[MY_NET_INPUTS];
        while (fread(x, 1, MY_NET_INPUTS, stdin) == MY_NET_INPUTS) puts(my_net_classes[my_net_predict(x)]);
        return 0;
    }
    """
    (tmp_path / "main.c").write_text(main_c)
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["gcc", *flags, "main.c", "-o", "main"], cwd=tmp_path, check=True)
    x, _ = images(30, seed=9)
    told = subprocess.run([tmp_path / "main"], input=x.tobytes(), capture_output=True, check=True).stdout.decode()
    model = load_packed(packed / "three.bqn")
    assert told.split() == [model.classes[label] for label in model(x[:, None]).argmax(-1)]
    assert bqn("export", packed / "three.bqn", "--to", "c", "--name", "other", "--out", tmp_path / "o.h").code == 0
    assert (tmp_path / "o.h").read_text() == text.replace("my_net_", "other_").replace("MY_NET_", "OTHER_")


def test_onnx(bqn, packed, tmp_path):
    done = bqn("export", packed / "three.bqn", "--to", "onnx", "--out", tmp_path / "a.onnx", "--json")
    told = json.loads(done.out)
    assert told == {
        "file": str(tmp_path / "a.onnx"), "form": "onnx", "bytes": (tmp_path / "a.onnx").stat().st_size, "members": 3
    }  # fmt: skip
    x, _ = images(30, seed=9)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    (probs,) = session.run(["probabilities"], {"pixels": x[:, None]})
    np.testing.assert_allclose(probs, load_packed(packed / "three.bqn")(x[:, None]), atol=1e-6)


def test_html(bqn, packed, tmp_path):
    done = bqn("export", packed / "three.bqn", "--to", "html", "--out", tmp_path / "page.html")
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "page.html").read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "as an HTML page" in " ".join(done.out.split())


@pytest.mark.parametrize(("form", "suffix"), [("c", ".h"), ("onnx", ".onnx"), ("html", ".html")])
def test_the_usual_name_stands_beside_the_file(bqn, packed, tmp_path, form, suffix):
    copy = tmp_path / "2 one.bqn"
    copy.write_bytes((packed / "prices.bqn").read_bytes())
    assert bqn("export", copy, "--to", form).code == 0
    assert sorted(path.name for path in tmp_path.glob("2*")) == sorted(["2 one.bqn", f"2 one{suffix}"])
    if form == "c":
        assert "int net_2_one_moments(" in (tmp_path / "2 one.h").read_text()


def test_wrong_usage(bqn, packed, tmp_path):
    file = packed / "three.bqn"
    assert "--to must be one of c, onnx, html, got 'java'" in bqn("export", file, "--to", "java").fails(2)
    assert "missing option '--to'" in bqn("export", file).fails(2)
    assert "--name is for --to c" in bqn("export", file, "--to", "onnx", "--name", "x").fails(2)
    target = ("--to", "c", "--out", tmp_path / "a.h")
    assert "--name must be a C identifier" in bqn("export", file, *target, "--name", "a b").fails(2)
    assert not (tmp_path / "a.h").exists()
    for nowhere in (tmp_path / "no" / "a.h", tmp_path):
        told = bqn("export", file, "--to", "c", "--out", nowhere).fails(2)
        assert told == f"--out must be a file in a folder that is there, got {nowhere}"


def test_a_full_disk_names_the_file_that_was_to_be_written(bqn, packed, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        told = bqn("export", packed / "three.bqn", "--to", "c", "--out", tmp_path / "a.h").fails()
    assert told == f"{tmp_path / 'a.h'}: No space left on device"
    assert not list(tmp_path.glob("a.h*"))


def test_a_file_that_cannot_be_made_is_named_without_its_temporary(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "no" / "a.h", b"")
    assert caught.value.filename == str(tmp_path / "no" / "a.h")


def test_a_packed_file_is_never_overwritten_by_its_export(bqn, packed):
    before = (packed / "three.bqn").read_bytes()
    done = bqn("export", packed / "three.bqn", "--to", "c", "--out", packed / "three.bqn")
    assert "--out is the packed file itself" in done.fails(2)
    assert (packed / "three.bqn").read_bytes() == before


def test_files_that_cannot_be_exported(bqn, packed, tmp_path):
    broken = tmp_path / "broken.bqn"
    broken.write_bytes((packed / "three.bqn").read_bytes()[:-1])
    pack(mlp(9, 2, (4,)).mode(), tmp_path / "shapeless.bqn")
    for form in ("c", "onnx", "html"):
        assert str(broken) in bqn("export", broken, "--to", form).fails()
        assert "No such file" in bqn("export", tmp_path / "missing.bqn", "--to", form).fails()
    for form in ("c", "onnx"):
        assert "does not say what shape" in bqn("export", tmp_path / "shapeless.bqn", "--to", form).fails()
    assert not list(tmp_path.glob("*.tmp"))


def test_it_needs_no_torch(packed, tmp_path):
    """In a process where torch cannot be imported at all."""
    script = "import sys; sys.modules['torch'] = None; from bqn.cli import main; sys.exit(main(sys.argv[1:]))"
    for form in ("c", "onnx", "html"):
        command = ("export", packed / "three.bqn", "--to", form, "--out", tmp_path / form)
        subprocess.run([sys.executable, "-c", script, *map(str, command)], check=True)
    assert (tmp_path / "onnx").read_bytes() == to_onnx(packed / "three.bqn")
