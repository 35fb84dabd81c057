"""Reads one log file. `reader` has the functions that other packages call.

`reader` also finds the end of a file and its block starts, from block headers alone.
`file_buffer` keeps a part of the file in memory, `scan` finds and checks its blocks. `plain_rows` reads row by row in
pure Python, for people who look at logs.
"""
