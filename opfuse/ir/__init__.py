"""The graph of operators on typed values, with symbolic dimensions and structures."""
