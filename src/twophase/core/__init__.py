"""Plain frozen data shared by every layer; imports no sibling. (`core.batch` alone needs torch: import it by name.)"""
