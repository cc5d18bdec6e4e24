"""A small workbook of its own, with one exercise of every kind, to test the machine on."""

from pathlib import Path

from twophase_labs.machine.lab import Workbook

DEMO = Workbook(Path(__file__).parent, "tests.labs.demo")
LAB = DEMO.lab("1")
