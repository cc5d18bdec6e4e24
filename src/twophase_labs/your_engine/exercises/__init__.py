"""The exercises of this chapter and their checks, a file per section of the lab. No answer may import them."""
