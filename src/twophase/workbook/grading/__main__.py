"""`python -m twophase.workbook.grading PATH ...`: the command `twophase grade` by itself."""

import sys

from twophase.cli.grade import main

if __name__ == "__main__":
    sys.exit(main())
