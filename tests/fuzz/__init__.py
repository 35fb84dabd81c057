"""Structure-aware fuzzing of everything that reads bytes of others: `python -m tests.fuzz --cases N --seed S`."""
