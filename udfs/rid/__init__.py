"""The RID: which generation of data a warehouse holds, and how two of them compare. Pure; nothing is stored here."""
