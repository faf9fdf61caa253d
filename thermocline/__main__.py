"""`python -m thermocline` is the command `thermocline`."""

import sys

from thermocline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
