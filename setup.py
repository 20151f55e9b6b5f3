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
        )
    ]
)
