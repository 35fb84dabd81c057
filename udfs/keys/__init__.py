"""Primary keys: `keys` writes them in canonical form, `key_order` and `sequence` in bytes that sort as an index sorts.

`grouping` brings rows of equal keys together, `row_hash` compares rows of the log, and `key_patterns` finds a key in
MessagePack.
"""
