"""The machine of the workbook; the author's guide is the docstring of `twophase_labs`."""
