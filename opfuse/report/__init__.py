"""What the user is told: explanations, numeric checks, benchmarks."""
