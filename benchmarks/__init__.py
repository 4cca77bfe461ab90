"""What speed claims rest on: toydepth beside what one would otherwise write. `make bench` runs it."""
