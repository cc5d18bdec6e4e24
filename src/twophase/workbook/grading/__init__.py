"""Grading a notebook file, from the file alone, in processes of its own.

locate.py    which cell of the file answers which exercise, and what is wrong with the file
worker.py    the process that answers run in: prepared once, forked per exercise
lane.py      the grader's end of a worker
grade.py     one notebook: what runs when, and the report
folder.py    many notebooks: a row per learner
report.py    the report as a table and as an HTML page
"""
