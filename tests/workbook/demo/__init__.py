"""A small workbook of its own, with one exercise of every kind, to test the machine on."""

from pathlib import Path

from twophase.workbook.lab import Workbook

DEMO = Workbook(Path(__file__).parent, "tests.workbook.demo")
LAB = DEMO.lab("1")
