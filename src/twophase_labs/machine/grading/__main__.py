"""`python -m twophase_labs.machine.grading PATH ...`: the command `twophase grade` by itself."""

import sys

from twophase_labs.commands.grade import main

if __name__ == "__main__":
    sys.exit(main())
