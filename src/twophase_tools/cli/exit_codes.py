"""What the commands end with."""

EXIT_OK = 0
EXIT_FAILED = 1  # something broke while running
EXIT_USAGE = 2  # what was asked for cannot be done; argparse uses the same code
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
