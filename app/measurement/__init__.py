"""Open-loop load, latencies and their pictures, for the demo and the benchmarks."""
