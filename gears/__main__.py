"""``python -m gears``: the `gears` command."""

import sys

from gears.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
