"""`python -m bqn` is `bqn`."""

import sys

from bqn.cli import main

if __name__ == "__main__":
    sys.exit(main())
