"""UPDATE and UPSERT as Tarantool executes them: `operations` applies them to a tuple, byte for byte.

`operation` decodes one, `arithmetic` and `decimals` compute, `quick_update` does the common ones without a tree, and
the modules `update_*` are that tree, with the rules of each server version in `update_rules`.
"""
