"""What is computed per row or per key, as Arrow UDFs, column expressions and plain functions. No tables, no jobs."""
