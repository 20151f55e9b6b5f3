"""What do the paper's networks take of a microcontroller? Flash and RAM of the C header, built for a Cortex-M4.

    python benchmarks/microcontroller.py --out results/benchmarks/microcontroller.json

Needs the cross compiler (Debian: gcc-arm-none-eabi). Each network is built into a program that predicts one example and
asks for its probabilities, with functions that nobody calls left out, as firmware would do; weights are drawn at
random, which changes no size. Flash is code and constants, RAM is all static memory, the example itself included; the
stack is the deepest chain of calls. With qemu-system-arm (Debian: qemu-system-arm) the network also runs on an emulated
Cortex-M4: its answers are compared with those of the packed network, and the instructions of a prediction are counted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bqn
from bqn.atomic import write_atomic
from bqn.deploy import Packed, PackedModel, pack_in_memory, to_bytes
from bqn.deploy.c_source import to_c

TOOLS = "arm-none-eabi-"
TARGET = ("-mcpu=cortex-m4", "-mthumb", "-std=c99", "-O2", "-ffunction-sections", "-fdata-sections")
# The emulated clock of 25 MHz ticks once in 40 instructions.
EMULATOR = ("qemu-system-arm", "-M", "mps2-an386", "-icount", "shift=0", "-nographic", "-semihosting", "-kernel")
INSTRUCTIONS_PER_TICK = 40
FIRMWARE = """
#define NET_IMPLEMENTATION
#include "net.h"
uint8_t example[NET_INPUTS];
uint32_t probabilities[NET_OUTPUTS];
volatile int label;
int main(void) {
    label = net_predict(example);
    return net_probabilities(example, probabilities);
}
"""
CHECK = """
#include <stdio.h>
#define NET_IMPLEMENTATION
#include "net.h"
extern void _start(void);
__attribute__((section(".vectors"), used)) const void *const vectors[] = {(void *)0x20400000, (void *)_start};
static const uint8_t examples[][NET_INPUTS] = {EXAMPLES};
static NET_INTEGER logits[NET_OUTPUTS];
static volatile uint32_t *const systick = (volatile uint32_t *)0xe000e010;
int main(void) {
    systick[1] = 0xffffff;
    systick[2] = 0;
    systick[0] = 5;
    const uint32_t before = systick[2];
    volatile int label = net_predict(examples[0]);
    const uint32_t after = systick[2];
    (void)label;
    printf("%ld ", (long)((before - after) & 0xffffff));
    for (unsigned i = 0; i < sizeof examples / sizeof *examples; ++i)
        for (int member = 0; member < NET_MEMBERS; ++member) {
            net_logits(examples[i], member, logits);
            for (int k = 0; k < NET_OUTPUTS; ++k) printf("%ld ", (long)logits[k]);
        }
    return 0;
}
"""


def networks() -> dict[str, tuple[bqn.Network, tuple[int, ...], int]]:
    """Name, shape of an example, members."""
    torch.manual_seed(0)
    return {
        "MLP 784-512-256-10": (bqn.models.mlp(784, 10), (784,), 1),
        "MLP, 5 samples": (bqn.models.mlp(784, 10), (784,), 5),
        "CNN": (bqn.models.cnn((1, 28, 28), 10), (1, 28, 28), 1),
        "CNN, pooling last": (bqn.models.cnn((1, 28, 28), 10, pool_first=False), (1, 28, 28), 1),
        "CNN 16-32-128": (bqn.models.cnn((1, 28, 28), 10, channels=(16, 32), hidden=128), (1, 28, 28), 1),
    }


def packed_network(net: bqn.Network, shape: tuple[int, ...], members: int) -> Packed:
    generator = torch.Generator().manual_seed(0)
    net.train()
    with torch.no_grad():  # statistics of batch norm that are not trivial
        net(bqn.data.to_input(torch.randint(0, 256, (4, *shape), dtype=torch.uint8, generator=generator)))
    net.eval()
    return pack_in_memory([net.sample(generator) for _ in range(members)], input_shape=shape)


def run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def measure(packed: Packed, folder: Path) -> dict[str, Any]:
    (folder / "net.h").write_text(to_c(packed, "net"))
    (folder / "main.c").write_text(FIRMWARE)
    link = ("-nostdlib", "-Wl,--gc-sections,-e,main", "-fcallgraph-info=su", "-fno-tree-loop-distribute-patterns")
    run(folder, f"{TOOLS}gcc", *TARGET, *link, "main.c", "-o", "firmware.elf", "-lgcc")
    text, data, bss = map(int, run(folder, f"{TOOLS}size", "firmware.elf").splitlines()[1].split()[:3])
    return {
        "flash": text + data,
        "ram": data + bss,
        "stack": deepest_stack(folder),
        "packed_file": len(to_bytes(packed)),
    }


def deepest_stack(folder: Path) -> int:
    """Bytes of the deepest chain of calls from `main`, by the compiler's graph of calls."""
    graph = next(folder.glob("*.ci")).read_text()
    own = {name: int(size) for name, size in re.findall(r'title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes', graph)}
    calls: dict[str, list[str]] = {}
    for source, target in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', graph):
        calls.setdefault(source, []).append(target)

    def depth(name: str) -> int:
        return own.get(name, 0) + max((depth(target) for target in calls.get(name, [])), default=0)

    return depth("main")


def emulate(packed: Packed, shape: tuple[int, ...], folder: Path) -> dict[str, Any]:
    """Instructions of a prediction, and whether the integers are those of the packed network; nothing without qemu."""
    if shutil.which(EMULATOR[0]) is None:
        return {"instructions": None, "agrees": None}
    x = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    rows = ",".join(f"{{{','.join(map(str, row))}}}" for row in x.reshape(3, -1).tolist())
    (folder / "check.c").write_text(CHECK.replace("EXAMPLES", rows))
    options = ("--specs=rdimon.specs", "-Wl,--section-start=.vectors=0")
    run(folder, f"{TOOLS}gcc", *TARGET, *options, "check.c", "-o", "check.elf")
    ticks, *told = map(int, run(folder, *EMULATOR, "check.elf").split())
    expected = np.stack(PackedModel(packed).logits(x), 1)
    return {"instructions": INSTRUCTIONS_PER_TICK * ticks, "agrees": told == expected.reshape(-1).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures")
    out = parser.parse_args().out
    compiler = run(Path(), f"{TOOLS}gcc", "--version").splitlines()[0]
    print(f"{compiler}, {' '.join(TARGET)}\n")
    print("| network | packed file | flash | RAM | stack | instructions |\n|---|---|---|---|---|---|")
    rows = []
    for name, (net, shape, members) in networks().items():
        packed = packed_network(net, shape, members)
        with tempfile.TemporaryDirectory() as folder:
            row = {"network": name, **measure(packed, Path(folder)), **emulate(packed, shape, Path(folder))}
        rows.append(row)
        print(row_in_words(row), "" if row["agrees"] is None else "same answers" if row["agrees"] else "DIFFERENT")
    if out is not None:
        emulated = "" if shutil.which(EMULATOR[0]) is None else f", emulated by {EMULATOR[0]} -M {EMULATOR[2]}"
        record = {
            "hardware": f"Cortex-M4{emulated}", "date": datetime.date.today().isoformat(), "compiler": compiler,
            "flags": " ".join(TARGET), "rows": rows,
        }  # fmt: skip
        write_atomic(out, f"{json.dumps(record, indent=1)}\n".encode())


def row_in_words(row: dict[str, Any]) -> str:
    sizes = [f"{row[key] / 1000:.1f} kB" for key in ("packed_file", "flash", "ram")]
    instructions = "–" if row["instructions"] is None else f"{row['instructions'] / 1e6:.1f} M"
    return f"| {row['network']} | {' | '.join(sizes)} | {row['stack']} B | {instructions} |"


if __name__ == "__main__":
    main()
