"""Entry points: each one parses options, connects the parts and runs them; `pipeline` has a batch's steps."""
