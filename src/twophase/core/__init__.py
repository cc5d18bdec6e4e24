"""Plain frozen data shared by every layer, errors, and the rules of options; imports no sibling."""
