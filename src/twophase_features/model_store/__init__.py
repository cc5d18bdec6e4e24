"""Where models come from: the built-in one, a local folder, or a hub; converted once, kept in a folder.

Public: `prepare`.
"""
