"""What compiled loops of all rooms share: MessagePack values in memory, decimals, doubles, texts, hashes."""
