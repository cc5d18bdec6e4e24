"""`python -m twophase` is the command `twophase`."""

import sys

from twophase.cli.main import main

sys.exit(main())
