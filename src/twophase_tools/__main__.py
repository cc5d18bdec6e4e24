"""`python -m twophase_tools` is the command `twophase`."""

import sys

from twophase_tools.cli.main import main

sys.exit(main())
