"""Generated code: see `broker.wire.generate`."""
