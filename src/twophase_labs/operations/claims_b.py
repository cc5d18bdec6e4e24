"""Numbers and comparisons of part B that stand without a cell above them, and why. (`claims` joins them.)"""

ALLOWED: dict[str, str] = {}
