"""The proof: are the tables what the live servers hold, key by key."""
