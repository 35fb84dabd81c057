"""What a space id means at each position of the log, and which table has the space's rows. Pure.

`system_rows` applies the rows of system spaces, `meanings_builder` finds the meanings of space ids (`meanings`), and
`undefined` those without a definition yet. `router` chooses the tables, `tables` plans their changes, `masks` what
readers of a masked space see; `vshard` follows vshard's buckets.
"""
