"""What the next run will do that the last one did not, as lines for people and programs."""
