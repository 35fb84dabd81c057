"""One log file: `window` holds a part of it in memory, `scan` finds its blocks, `extent` its written end.

`reader` has the functions that others call. `plain_rows` reads row by row in pure Python, for people who look at logs.
"""
