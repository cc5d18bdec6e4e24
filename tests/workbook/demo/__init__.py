"""A small workbook of its own, with one exercise of every kind, to test the machine on."""
