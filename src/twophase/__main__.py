"""`python -m twophase` is the command `twophase`, found as it was installed: the engine imports nothing above it."""

import sys
from importlib.metadata import entry_points

(command,) = entry_points(group="console_scripts", name="twophase")
sys.exit(command.load()())
