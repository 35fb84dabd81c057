"""The RID (replication id): which generation of data a copy of a warehouse has, and how two RIDs compare. Pure.

A *node* is one copy of a warehouse. A *generation* is a part of the warehouse's history, identified by a ULID: a new
one begins with the first epoch (committed batch) after a point at which copies may have separated. A RID names the
current generation (`head`), the two before it (`old1`, `old2`), and the network of copies (`base`). Read `value` (the
RID and its text), then `operations` (how it changes), then `comparison`. docs/rid.md describes the use.
"""
