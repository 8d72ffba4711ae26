"""`python -m jaxspec` is the `jaxspec` command."""

import sys

from jaxspec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
