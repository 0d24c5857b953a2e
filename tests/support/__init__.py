"""What the tests stand on: servers, the reference model, oracles, workers."""
