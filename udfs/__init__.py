"""What is computed per row or per key: Arrow UDFs, column expressions, functions. No tables, no jobs."""
