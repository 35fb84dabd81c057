"""What can be known before a run: facts are gathered (`gather`), pure checks turn them into findings."""
