"""Functions that all compiled loops share: MessagePack values in memory, decimals, doubles, UTF-8, hashes."""
