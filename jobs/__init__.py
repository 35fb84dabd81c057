"""Entry points: each one parses options, connects the parts and runs them; `pipeline` has a batch's steps.

Start with `aggregate`. `commands` defines the command line, `runtime` has the common parts.
"""
