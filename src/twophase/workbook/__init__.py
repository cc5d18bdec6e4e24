"""The workbook machine: notebooks from one source, and the pictures they share."""
