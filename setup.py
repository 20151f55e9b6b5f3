"""What pyproject.toml cannot say well: kernels in C that are built if there is a compiler.

`optional` lets the installation go on without them, with a note from setuptools; the runtime then uses numpy.
"""

import sys

from setuptools import Extension, setup

POSIX = [] if sys.platform == "win32" else ["-std=c99", "-O3", "-pthread"]

setup(
    ext_modules=[
        Extension(
            "bqn.deploy._kernels",
            ["src/bqn/deploy/kernels.c"],
            extra_compile_args=POSIX,
            extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
            optional=True,
        ),
        Extension(
            "bqn.propagate._cpu_kernels",
            ["src/bqn/propagate/cpu_kernels.c", "src/bqn/propagate/cpu_cnn.c"],
            depends=["src/bqn/propagate/cpu_math.h"],
            # Loops with a choice in them become vectors only if comparisons may not trap; a NaN stays a NaN. And ISO C
            # does not fuse products and sums unless told to, which takes a third off a polynomial.
            extra_compile_args=[*POSIX, "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
            if POSIX
            else [],
            extra_link_args=["-lm"] if POSIX else [],
            optional=True,
        ),
    ]
)
