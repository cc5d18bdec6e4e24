"""Grading a notebook file, from the file alone, in processes of its own.

files.py     reading what was handed in, and text that is safe to show
locate.py    which cell of the file answers which exercise, and what is wrong with the file
helpers.py   what an answer needs from other cells
flags.py     cells that a lecturer should read
run_one.py   one answer: its cells, then its check
worker.py    the process that is forked for each answer; sandbox.py, what the fork can see and reach
lane.py      the grader's end of a worker
grade.py     one notebook: what runs when, and the report
handed_in.py a folder or archive of submissions: what is in it, and whose
folder.py    many notebooks, none of which can hurt another's grade
report.py    the report as a table and as an HTML page
output.py    results as files: JSON, a row per learner, tables for Canvas and Moodle
gradescope.py a lab as an autograder of Gradescope
"""
