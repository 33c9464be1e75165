"""Which nodes become one kernel: regions, legality, cost, grouping, and what a provider answers."""
