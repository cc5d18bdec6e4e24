"""The documentation: the pages of the site, and the commands that make the README's pictures and tables."""
