"""before_replace: which tuple stands under a key that several replicasets hold, as pure functions of their versions."""
