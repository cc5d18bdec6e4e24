"""`twophase grade` and `twophase labs`, found by the command line through entry points."""
