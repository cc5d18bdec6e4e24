"""How long each kernel of `bench kernels` should take on a GPU that is not here: predictions with bounds.

rates: what a multiprocessor does in a cycle, and what was assumed. machine_code: what the compiled code asks of each
pipe. launches: what a case launches. trips: how often each program runs each loop. bounds: all of that as seconds.
predict, score: the files.
"""
