"""Sources of rows: log files (`xlog`), live servers (`iproto`, `subscribe`, `spool`) and backups (`backup`).

`relay` serves spools to other subscribers. Start with `xlog`. Depends on `schemas` only.
"""
