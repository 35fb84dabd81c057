"""The RID: which generation of data a warehouse has, and how two RIDs compare. Pure; nothing is stored here."""
