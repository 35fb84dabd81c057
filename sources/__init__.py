"""Where rows come from: xlog files (`sources.xlog`). Depends on `schemas` only."""
