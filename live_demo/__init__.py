"""The live demonstration: real Tarantools, the real commands, a page that refreshes itself (`make live-demo`)."""
