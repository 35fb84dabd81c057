"""The aggregator's own tables, one module for each, and their maintenance."""
