"""Where the figures in the documentation come from: `python -m benchmarks NAME [--json]`."""
