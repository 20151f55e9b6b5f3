"""A C header as a program: compiled with all warnings as errors, run on examples, its answers read back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bqn.deploy import Packed
from bqn.deploy.c_source import to_c

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wundef", "-Wvla", "-Werror")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_CLASSES = """
static uint32_t probabilities[T_OUTPUTS];
static uint16_t votes[T_OUTPUTS];
static void answer(const T_INPUT *x) {
    int32_t label = t_predict(x);
    if (t_probabilities(x, probabilities) || t_votes(x, votes)) exit(3);
    fwrite(probabilities, sizeof *probabilities, T_OUTPUTS, stdout);
    fwrite(votes, sizeof *votes, T_OUTPUTS, stdout);
    fwrite(&label, sizeof label, 1, stdout);
}
"""
_MOMENTS = """
static void answer(const T_INPUT *x) {
    double mean[T_TARGETS], variance[T_TARGETS];
    if (t_moments(x, mean, variance)) exit(3);
    fwrite(mean, sizeof *mean, T_TARGETS, stdout);
    fwrite(variance, sizeof *variance, T_TARGETS, stdout);
}
"""
_MAIN = """
int main(void) {
    static T_INPUT x[T_INPUTS];
    static T_INTEGER logits[T_OUTPUTS];
    while (fread(x, sizeof *x, T_INPUTS, stdin) == T_INPUTS) {
        for (int member = 0; member < T_MEMBERS; ++member) {
            if (t_logits(x, member, logits)) return 2;
            fwrite(logits, sizeof *logits, T_OUTPUTS, stdout);
        }
        answer(x);
    }
    return t_logits(x, T_MEMBERS, logits) == -1 && t_logits(x, -1, logits) == -1 ? 0 : 4;
}
"""


class Answers(NamedTuple):
    """What a header computes for N examples."""

    logits: list[np.ndarray]  # one `(N, outputs)` a member
    probabilities: np.ndarray | None = None
    votes: np.ndarray | None = None
    labels: np.ndarray | None = None
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None


def build(packed: Packed, folder: Path, *options: str) -> Path:
    """Compile a packed network to a program; every warning is an error."""
    (folder / "t.h").write_text(to_c(packed, "t"))
    answer = _CLASSES if packed.program.head == "softmax" else _MOMENTS
    main = f'#include <stdio.h>\n#include <stdlib.h>\n#define T_IMPLEMENTATION\n#include "t.h"\n{answer}{_MAIN}'
    (folder / "main.c").write_text(main)
    command = ["gcc", *FLAGS, *(options or ("-O2",)), "main.c", "-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def answers(packed: Packed, x: np.ndarray, folder: Path, *options: str) -> Answers:
    """What the compiled network gives for examples `(N, ...)`."""
    program = build(packed, folder, *options)
    kind = np.uint8 if packed.program.input.kind == "pixels" else np.float32
    given = np.ascontiguousarray(x.astype(kind)).tobytes()
    done = subprocess.run([program], input=given, capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    sizes = _sizes(folder / "t.h")
    outputs, members = sizes["OUTPUTS"], packed.members
    fields = [("logits", f"<i{8 if 'T_INTEGER int64_t' in (folder / 't.h').read_text() else 4}", (members, outputs))]
    if packed.program.head == "softmax":
        fields += [("probabilities", "<u4", (outputs,)), ("votes", "<u2", (outputs,)), ("label", "<i4")]
    else:
        fields += [(name, "<f8", (sizes["TARGETS"],)) for name in ("mean", "variance")]
    rows = np.frombuffer(done.stdout, np.dtype(fields))
    assert len(rows) == len(x)
    logits = [rows["logits"][:, member] for member in range(members)]
    if packed.program.head == "softmax":
        return Answers(logits, rows["probabilities"] / 2**31, rows["votes"], rows["label"])
    return Answers(logits, mean=rows["mean"], variance=rows["variance"])


def _sizes(header: Path) -> dict[str, int]:
    lines = [line.split() for line in header.read_text().splitlines() if line.startswith("#define T_")]
    return {line[1].removeprefix("T_"): int(line[2]) for line in lines if len(line) == 3 and line[2].isdigit()}
